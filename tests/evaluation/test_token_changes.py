import pytest
import torch
from task_data import word_tokenizer
from test_causal import ROWS, TEXT, WORDS, decoder

from kprune import Test, evaluate
from kprune.data.choices import CHOICE_METRICS, Choices
from kprune.data.windows import Windows
from kprune.evaluation import causal, token_changes
from kprune.evaluation.token_changes import NEXT_TOKEN

LENGTH, COUNT = 20, 6


def changes_between(dense, other, most, test=None):
    windows = Test(TEXT.name, None, TEXT.rows, None, windows=Windows(LENGTH, None, COUNT))
    return evaluate(other, word_tokenizer(words=WORDS), test or windows, against=dense, most_changes=most).changes


def differing(dense, other):
    """Per place with another most likely token: the text before it, three tokens and two probabilities."""
    tokenizer, found = word_tokenizer(words=WORDS), []
    tokens = tokenizer("\n\n".join(text for (text,) in TEXT.rows))["input_ids"]
    for start in range(0, COUNT * LENGTH, LENGTH):
        ids = torch.tensor(tokens[start : start + LENGTH])
        with torch.no_grad():
            both = [each(ids[None], use_cache=False).logits[0, :-1].softmax(-1).max(-1) for each in (dense, other)]
        for place in (both[0].indices != both[1].indices).nonzero().squeeze(1).tolist():
            answers = [int(each.indices[place]) for each in both]
            written = [tokenizer.decode([token]) or "␣" for token in (*answers, int(ids[place + 1]))]
            sure = [float(each.values[place]) for each in both]
            found.append((tokenizer.decode(ids[: place + 1]), *written, *sure))
    return sorted(found, key=lambda each: -each[4])


@pytest.mark.parametrize("piece", [99 * 5, 2**24])
def test_tokens_that_are_predicted_differently_are_those_of_a_plain_loop(piece, monkeypatch):
    monkeypatch.setattr(causal, "PIECE", piece)
    dense, other = decoder(), decoder(seed=1)
    changes, expected = changes_between(dense, other, 10_000), differing(dense, other)
    assert (changes.what, changes.compared) == (NEXT_TOKEN, COUNT * (LENGTH - 1))
    assert 0 < changes.changed == len(expected)
    for change, (text, before, after, right, sure, unsure) in zip(changes.examples, expected, strict=True):
        assert (*change.text, change.before, change.after, change.reference) == (text, before, after, right)
        assert (change.before_confidence, change.after_confidence) == pytest.approx((sure, unsure), rel=1e-4)


def test_only_the_surest_places_are_kept_and_the_end_of_the_text_is_shown(monkeypatch):
    monkeypatch.setattr(token_changes, "MOST_KEPT", 7)
    monkeypatch.setattr(token_changes, "CONTEXT", 3)
    monkeypatch.setattr(causal, "PIECE", 99 * 5)
    dense, other = decoder(), decoder(seed=1)
    changes, expected = changes_between(dense, other, 5), differing(dense, other)
    assert changes.changed == len(expected)
    assert [change.before for change in changes.examples] == [each[1] for each in expected[:5]]
    for change, (text, *_) in zip(changes.examples, expected, strict=False):
        assert change.text[0].removeprefix("… ").split() == text.split()[-3:]


def test_equal_decoders_predict_alike():
    changes = changes_between(decoder(), decoder(), 9)
    assert (changes.changed, changes.examples) == (0, ())


def test_changed_choices_are_those_of_two_evaluations():
    dense, other = decoder(), decoder(seed=1)
    choices = [Choices(tuple(f"w{(7 * n + 3 * k) % WORDS}" for k in range(4)), n % 4) for n in range(len(ROWS))]
    test = Test("mine", None, ROWS, choices, CHOICE_METRICS)
    changes = changes_between(dense, other, 99, test)
    assert changes.compared == len(ROWS)
    texts = {text: each for (text,), each in zip(ROWS, choices, strict=True)}
    right = [0, 0]
    for change in changes.examples:
        row = texts[change.text[0]]
        assert change.before != change.after
        assert {change.before, change.after} <= set(row.texts)
        assert change.reference == row.texts[row.answer]
        right[0] += change.before == change.reference
        right[1] += change.after == change.reference
    accuracy = [
        evaluate(each, word_tokenizer(words=WORDS), test).figures[0].value * len(ROWS) / 100 for each in (dense, other)
    ]
    assert accuracy[0] - accuracy[1] == pytest.approx(right[0] - right[1])
