import math

import pytest
import torch
import zoo
from hypothesis import given
from hypothesis import strategies as st
from task_data import word_tokenizer

from kprune import KpruneError, Test, evaluate
from kprune.data.windows import Windows, cut_text
from kprune.evaluation import causal
from kprune.evaluation.evaluator import check_compatible

WORDS, POSITIONS = 90, 48
ROWS = [(" ".join(f"w{(n * n + 3 * n) % WORDS}" for n in range(start, start + 30)),) for start in range(9)]
TEXT = Test("mine", None, ROWS, None)


def decoder(name="llama", seed=0):
    """A tiny decoder for the tokens of `word_tokenizer(words=90)`."""
    model = zoo.build(name, "causal language model", max_position_embeddings=POSITIONS)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


def token_scores(model, windows, length, stride):
    """Per window: losses of the scored tokens, by a plain loop over whole outputs; and the log-probabilities."""
    for number, window in enumerate(windows):
        ids = torch.tensor(window)
        first = 1 if number == 0 else max(1, length - stride)
        with torch.no_grad():
            logs = model(ids[None], use_cache=False).logits[0].log_softmax(-1)[:-1]
        loss = torch.nn.functional.cross_entropy(logs, ids[1:], reduction="none")
        yield loss[first - 1 :], logs[first - 1 :]


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "gemma2"])
@pytest.mark.parametrize("stride", [None, 8])
def test_perplexity_and_likeness_are_those_of_a_plain_loop(name, stride, monkeypatch):
    monkeypatch.setattr(causal, "PIECE", 99 * 5)  # five positions at a time
    dense, other = decoder(name), decoder(name, seed=1)
    tokenizer, length = word_tokenizer(words=WORDS), 20
    test = Test(TEXT.name, None, TEXT.rows, None, windows=Windows(length, stride, 6))
    result = evaluate(dense, tokenizer, test, against=other)
    joined = "\n\n".join(text for (text,) in test.rows)
    tokens = tokenizer(joined)["input_ids"]
    step = stride or length
    windows = [tokens[start : start + length] for start in range(0, 6 * step, step)]
    ours, theirs = (list(token_scores(model, windows, length, step)) for model in (dense, other))
    for figure, scores in ((result.figures[0], ours), (result.against[0], theirs)):
        assert figure.value == pytest.approx(math.exp(torch.cat([loss for loss, _ in scores]).mean()), rel=1e-4)
    logs = [(mine, yours) for (_, mine), (_, yours) in zip(ours, theirs, strict=True)]
    agreement = [(mine.argmax(-1) == yours.argmax(-1)).float().mean() for mine, yours in logs]
    lost = [(yours.exp() * (yours - mine)).sum(-1).mean() for mine, yours in logs]
    assert result.fidelity[0].value == pytest.approx(100 * float(torch.stack(agreement).mean()), rel=1e-4)
    assert result.fidelity[1].value == pytest.approx(float(torch.stack(lost).mean()), rel=1e-4)
    assert result.differences[0].value == pytest.approx(result.figures[0].value - result.against[0].value)
    assert (result.examples, result.resampled) == (6, 6)
    assert f"6 windows of 20 tokens with a stride of {step}" in result.notes[0]


@given(
    tokens=st.integers(2, 120),
    length=st.integers(2, 40),
    stride=st.integers(1, 40),
    most=st.one_of(st.none(), st.integers(1, 8)),
)
def test_windows_score_every_token_once_from_the_second_on(tokens, length, stride, most):
    if stride > length:
        return
    text = " ".join(f"w{n}" for n in range(tokens))
    cut = cut_text([text], word_tokenizer(), Windows(length, stride, most), 64, "mine")
    scored = [token for n, window in enumerate(cut.windows) for token in window[cut.first_scored(n) :]]
    if stride < length:
        assert scored == list(range(1, len(scored) + 1))
    else:  # the first token of each window has no context
        assert scored == [token for token in range(len(cut.windows) * cut.length) if token % cut.length]
    assert {len(window) for window in cut.windows} == {min(length, tokens)}
    if most is None:
        assert cut.windows[-1][-1] + 1 + cut.rest == tokens
        assert cut.rest < stride


def test_the_first_windows_of_a_long_text_are_those_of_the_whole_text():
    texts = [text for (text,) in TEXT.rows] * 40
    whole = cut_text(texts, word_tokenizer(), Windows(32), 64, "mine")
    first = cut_text(texts, word_tokenizer(), Windows(32, most=3), 64, "mine")
    assert first.windows == whole.windows[:3]
    assert first.rest == 0


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        (Windows(64), "the window is 64 tokens, but must be between 2 and 48, the model's limit"),
        (Windows(16, 17), "the stride is 17, but must be between 1 and the window, 16 tokens"),
    ],
)
def test_windows_beyond_the_model_are_refused(windows, message):
    with pytest.raises(KpruneError, match=message):
        evaluate(decoder(), word_tokenizer(words=WORDS), Test("mine", None, TEXT.rows, None, windows=windows))


def test_a_text_of_one_token_is_refused():
    with pytest.raises(KpruneError, match="mine is too short: 1 tokens, and perplexity needs 2 or more"):
        evaluate(decoder(), word_tokenizer(words=WORDS), Test("mine", None, ["w1"], None))


def test_a_task_for_language_models_suits_both_kinds_and_no_other():
    test = Test("wikitext2", "language model", TEXT.rows, None, ("perplexity",))
    check_compatible(decoder(), word_tokenizer(words=WORDS), test)
    classifier = zoo.build("llama", "classification")
    with pytest.raises(KpruneError, match=r"made for classification .*, and wikitext2 for language model"):
        check_compatible(classifier, word_tokenizer(words=WORDS), test)


def test_windows_are_for_perplexity_only():
    test = Test("mine", None, TEXT.rows, None, windows=Windows(16))
    classifier = zoo.build("llama", "classification")
    with pytest.raises(KpruneError, match="mine is not cut into windows: they are for the perplexity of causal"):
        evaluate(classifier, word_tokenizer(words=WORDS), test, against=classifier)


def test_a_classifier_without_a_padding_token_is_refused_with_a_remedy():
    classifier = zoo.build("llama", "classification", pad_token_id=None)
    with pytest.raises(KpruneError, match=r"has no pad_token_id, .* set model.config.pad_token_id"):
        evaluate(classifier, word_tokenizer(words=WORDS), TEXT, against=classifier)


def test_a_model_without_a_chunked_head_gives_the_same_figures():
    model, served = decoder(), decoder()
    plain = served.forward
    served.forward = lambda **inputs: plain(**inputs)  # as of an exported graph: any inputs, whole outputs
    tokenizer = word_tokenizer(words=WORDS)
    ours, theirs = (evaluate(each, tokenizer, TEXT).figures[0] for each in (model, served))
    assert ours.value == pytest.approx(theirs.value, rel=1e-5)
    both = evaluate(model, tokenizer, TEXT, against=served)
    assert both.fidelity[0].value == 100
    assert both.fidelity[1].value == pytest.approx(0, abs=1e-6)


def test_logits_of_a_whole_window_never_exist(monkeypatch):
    """A vocabulary of 152,000 words with windows of 1,024 tokens would need 0.6 GB for one copy of the logits."""
    monkeypatch.setattr(causal, "PIECE", 99 * 4)
    seen = []
    read = causal._read
    monkeypatch.setattr(causal, "_read", lambda logits, *rest: seen.append(logits.shape) or read(logits, *rest))
    evaluate(decoder(), word_tokenizer(words=WORDS), TEXT, against=decoder(seed=1))
    assert seen
    assert all(examples * positions <= max(4, examples) for examples, positions, _ in seen)
