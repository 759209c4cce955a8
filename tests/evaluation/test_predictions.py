import pytest
import tiny
from evaluation_cases import PARAGRAPHS, made_up, paragraphs, score, shared_model, unlabelled

from kprune import KpruneError, Test
from kprune.evaluation import predictions
from kprune.models.passes import call


@pytest.mark.parametrize("kind", ["classification", "regression", "embedding"])
def test_predictions_of_the_second_model_are_cached(kind, monkeypatch):
    model, third, other = (shared_model(kind, seed=seed) for seed in (0, 2, 1))
    test = unlabelled(paragraphs(20))
    recalled = {}
    first = score(model, test, against=other, recalled=recalled)
    called = []
    monkeypatch.setattr(predictions, "call", lambda model, batch: called.append(model) or call(model, batch))
    for each, again in ((model, first), (third, score(third, test, against=other))):
        called.clear()
        cached = score(each, test, against=other, recalled=recalled)
        assert set(called) == {each}
        assert cached.fidelity == again.fidelity


def test_predictions_as_wide_as_the_vocabulary_are_not_cached():
    model, recalled = shared_model("masked language model"), {}
    score(model, unlabelled(paragraphs(2)), against=model, recalled=recalled, max_length=60)
    assert recalled == {}


def test_sorted_batches_have_little_padding():
    rows = [(text[: 20 + 13 * number % 180],) for number, text in enumerate(PARAGRAPHS)]
    assert len(rows) == 300
    test = Test("mine", None, rows, [0] * len(rows))
    assert score(shared_model("classification"), test, max_length=60).padding < 0.05


def test_progress_rises_to_one():
    fractions = []
    score(shared_model("classification", num_labels=2), made_up("sst2"), progress=fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_a_tokenizer_with_more_tokens_than_the_embedding_is_refused():
    model = tiny.tiny_model("bert", "classification")
    with pytest.raises(KpruneError, match=r"has a token number 30521, and the model 99 embeddings; use"):
        score(model, Test("mine", None, ["some words"], [0]))
