import pytest
import torch
import zoo
from task_data import word_tokenizer

from kprune import KpruneError, Test, evaluate, read_test

WORDS, POSITIONS = 90, 24


@pytest.fixture(scope="module")
def model():
    return zoo.build("llama", max_position_embeddings=POSITIONS)


def rows_of(count):
    """Contexts and choices of several lengths; every other answer is a text."""
    rows = []
    for number in range(count):
        context = " ".join(f"w{(7 * number + k) % WORDS}" for k in range(number % 5 + 1))
        choices = [" ".join(f"w{(n * 11 + number * k) % WORDS}" for k in range(n + 1)) for n in range(2 + number % 3)]
        rows.append({"context": context, "choices": choices, "answer": number % len(choices)})
    return rows


def by_hand(model, rows, before):
    """Whether each row's choice is right, by the sum of log-likelihoods and per character."""
    right = [], []
    for row in rows:
        scores = []
        for choice in row["choices"]:
            context, chosen = ([int(word[1:]) for word in text.split()] for text in (row["context"], choice))
            ids = torch.tensor([*before, *context, *chosen][-POSITIONS - 1 :])
            with torch.no_grad():
                logs = model(ids[None, :-1], use_cache=False).logits[0].log_softmax(-1)
            start = len(ids) - len(chosen)
            scores.append(sum(float(logs[place - 1, ids[place]]) for place in range(start, len(ids))))
        per_character = [score / len(choice) for score, choice in zip(scores, row["choices"], strict=True)]
        for found, values in zip(right, (scores, per_character), strict=True):
            found.append(values.index(max(values)) == row["answer"])
    return [100 * sum(found) / len(found) for found in right]


@pytest.mark.parametrize("adds_start", [False, True])
def test_choices_are_those_of_brute_force(model, adds_start):
    rows = rows_of(40)
    tokenizer = word_tokenizer(words=WORDS, adds_start=adds_start)
    result = evaluate(model, tokenizer, read_test(rows, name="mine"), against=zoo.build("llama", rms_norm_eps=1e-2))
    assert [figure.name for figure in result.figures] == ["accuracy", "accuracy-norm"]
    expected = by_hand(model, rows, [WORDS + 1] if adds_start else [])
    assert [figure.value for figure in result.figures] == pytest.approx(expected)
    assert 0 < expected[0] < 100
    assert expected[0] != expected[1]
    assert (result.examples, result.resampled) == (40, 40)
    assert "log-likelihood" in result.notes[0]


def test_an_empty_context_is_the_end_of_text_token(model):
    rows = [{**row, "context": ""} for row in rows_of(20)]
    result = evaluate(model, word_tokenizer(words=WORDS), read_test(rows))
    assert [figure.value for figure in result.figures] == pytest.approx(by_hand(model, rows, [WORDS]))
    with pytest.raises(KpruneError, match="needs a token before it, and the tokenizer has none; add a context"):
        evaluate(model, word_tokenizer(words=WORDS, has_end=False), read_test(rows))


def test_a_long_context_loses_its_beginning(model):
    long = [{**row, "context": "w3 " * 40 + row["context"]} for row in rows_of(20)]
    result = evaluate(model, word_tokenizer(words=WORDS), read_test(long))
    assert [figure.value for figure in result.figures] == pytest.approx(by_hand(model, long, []))
    with pytest.raises(KpruneError, match="has 30 tokens, and the model reads 24; shorten it"):
        evaluate(model, word_tokenizer(words=WORDS), read_test([{**long[0], "choices": ["w1", "w1 " * 30]}]))


def test_labels_of_another_kind_are_refused(model):
    with pytest.raises(KpruneError, match="cannot be scored on the labels of mine; leave them out for perplexity"):
        evaluate(model, word_tokenizer(words=WORDS), Test("mine", None, ["w1 w2"], [1]))
