"""Scores of rankings agree with scikit-learn and with trying every order; models rank as sentence-transformers does."""

import json
from itertools import permutations

import numpy as np
import pytest
import tiny
import torch
from command_line import kprune as command
from command_line import write_checkpoint
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import CrossEncoder
from sklearn.metrics import ndcg_score
from task_data import load_tokenizer

import kprune
from kprune.data.calibration import python_documentation
from kprune.evaluation.reranking import ndcg, reciprocal_rank

TEXTS = [text[:80] for text in python_documentation()[:60]]
passages = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=2, max_size=30)
few = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=5)


@given(passages, st.sampled_from([1, 3, 10]))
def test_ndcg_agrees_with_scikit_learn_ties_included(drawn, cutoff):
    scores, relevance = (np.array(part, dtype=float) for part in zip(*drawn, strict=True))
    expected = ndcg_score([relevance], [scores], k=cutoff) if relevance.any() else 0.0
    assert ndcg(scores, relevance, cutoff) == pytest.approx(expected)


@given(few, st.sampled_from([1, 2, 10]))
def test_the_reciprocal_rank_is_the_mean_over_all_orders_of_equal_scores(drawn, cutoff):
    scores, relevance = (np.array(part, dtype=float) for part in zip(*drawn, strict=True))
    orders = [order for order in permutations(range(len(scores))) if (np.diff(scores[list(order)]) <= 0).all()]
    ranks = [next((rank for rank, place in enumerate(order, 1) if relevance[place] > 0), 0) for order in orders]
    expected = np.mean([1 / rank if 0 < rank <= cutoff else 0.0 for rank in ranks])
    assert reciprocal_rank(scores, relevance, cutoff) == pytest.approx(expected)


def test_a_perfect_order_has_one_and_a_model_without_an_opinion_has_chance():
    relevance = np.array([0.0, 0.0, 1.0])
    assert ndcg(relevance, relevance) == reciprocal_rank(relevance, relevance) == 1.0
    assert reciprocal_rank(np.zeros(3), relevance) == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rows = [
        {"query": TEXTS[n][:30], "passages": TEXTS[n + 1 : n + 8], "relevance": [int(k == n % 7) for k in range(7)]}
        for n in range(20)
    ]
    file = tmp_path_factory.mktemp("rankings") / "queries.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    root = tmp_path_factory.mktemp("rerankers")
    write_checkpoint(root / "plain", "regression", max_position_embeddings=512)
    model = CrossEncoder(str(root / "plain"), device="cpu", max_length=24, activation_fn=torch.nn.Tanh())
    model.save_pretrained(str(root / "reranker"))
    return root / "reranker"


def test_a_pruned_reranker_is_a_cross_encoder_and_is_scored_as_one(reranker, table, tmp_path):
    options = ("--data", table, "--reduction", 0.5, "--align", 1, "--tokens", 1000, "--evaluate", "--json")
    done = command("prune", reranker, tmp_path / "small", *options, "--validation", table)
    assert done.exit_code == 0, done.output
    dense, small = (CrossEncoder(str(folder), device="cpu") for folder in (reranker, tmp_path / "small"))
    assert [type(each.activation_fn) for each in (dense, small)] == [torch.nn.Tanh] * 2
    assert small.max_seq_length == dense.max_seq_length == 24
    assert small.config.id2label == dense.config.id2label
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    scores = [small.predict([(row["query"], text) for text in row["passages"]]) for row in rows]
    pairs = [(score, np.array(row["relevance"])) for score, row in zip(scores, rows, strict=True)]
    expected = {"ndcg@10": ndcg, "mrr@10": reciprocal_rank}
    evaluation = json.loads(done.stdout)["evaluation"]
    assert (evaluation["examples"], evaluation["resampled"]) == (20, 20)
    assert {each["name"]: each["value"] for each in evaluation["figures"]} == {
        name: pytest.approx(100 * np.mean([score(*pair) for pair in pairs]), rel=1e-5)
        for name, score in expected.items()
    }
    assert [each["name"] for each in evaluation["differences"]] == ["ndcg@10", "mrr@10"]


def test_an_embedding_model_ranks_by_cosine_and_a_classifier_by_its_second_class(table):
    test = kprune.read_test([json.loads(line) for line in table.read_text().splitlines()])
    tokenizer = load_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "pad_token_id": 0}
    texts = [(query, passages.texts) for (query,), passages in zip(test.rows, test.references, strict=True)]
    for kind, labels in (("embedding", {}), ("classification", {"num_labels": 2})):
        model = tiny.tiny_model("bert", kind, **sizes, **labels)
        found = kprune.evaluate(model, tokenizer, test).figures[0]
        values = []
        for (query, group), passages in zip(texts, test.references, strict=True):
            with torch.no_grad():
                if kind == "embedding":
                    vectors = [embed(model, tokenizer, text) for text in (query, *group)]
                    scores = torch.stack(vectors[1:]) @ vectors[0]
                else:
                    pairs = tokenizer([query] * len(group), list(group), padding=True, return_tensors="pt")
                    scores = model(**pairs).logits.softmax(-1)[:, 1]
            values.append(ndcg(scores.double().numpy(), np.array(passages.relevance)))
        assert found.value == pytest.approx(100 * np.mean(values), rel=1e-4)


def embed(model, tokenizer, text):
    hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
    return torch.nn.functional.normalize(hidden, dim=0)


@pytest.mark.parametrize(
    ("kind", "labels", "message"),
    [
        ("classification", {"num_labels": 3}, "the model has 3 classes, and passages are ranked by one value"),
        ("token classification", {}, "ranks passages, which a model for token classification does not score"),
    ],
)
def test_other_models_are_refused(kind, labels, message, table):
    test = kprune.read_test([json.loads(line) for line in table.read_text().splitlines()])
    tokenizer = load_tokenizer()
    model = tiny.tiny_model("bert", kind, vocab_size=len(tokenizer), pad_token_id=0, **labels)
    with pytest.raises(kprune.KpruneError, match=message):
        kprune.evaluate(model, tokenizer, test)


def test_a_reranker_saved_without_its_source_is_warned_of(reranker, tmp_path, caplog):
    model = kprune.Source(reranker).load()
    result = kprune.prune(model, tiny.batched(tiny.texts(32)), reduction=0.3, align=1, ridge=1e-3)
    kprune.save(result, tmp_path / "bare")
    assert "is saved without the modules of sentence-transformers" in caplog.text


def test_queries_without_a_relevant_passage_are_not_scored(table):
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    unanswered = {**rows[0], "query": "Which other one?", "relevance": [0] * 7}
    tokenizer = load_tokenizer()
    model = tiny.tiny_model("bert", "regression", vocab_size=len(tokenizer), pad_token_id=0)
    alone, found = (
        kprune.evaluate(model, tokenizer, kprune.read_test(each, name="mine")) for each in (rows, [unanswered, *rows])
    )
    assert [each.value for each in found.figures] == pytest.approx([each.value for each in alone.figures])
    assert (found.examples, found.resampled) == (20, 20)
    assert "1 of 21 queries of mine have no relevant passage and are not scored." in found.notes
    with pytest.raises(kprune.KpruneError, match="mine has no query with a relevant passage"):
        kprune.evaluate(model, tokenizer, kprune.read_test([unanswered], name="mine"))


def test_queries_that_any_order_answers_are_counted_in_a_note():
    """A table with one passage per query, all relevant, would give every model 100 without a word."""
    tokenizer = load_tokenizer()
    model = tiny.tiny_model("bert", "regression", vocab_size=len(tokenizer), pad_token_id=0)
    pairs = [{"query": f"Which {n}?", "passage": TEXTS[n], "relevance": 1} for n in range(3)]
    for table, alike in ((pairs, 3), ([*pairs, {**pairs[0], "passage": TEXTS[4], "relevance": 0}], 2)):
        found = kprune.evaluate(model, tokenizer, kprune.read_test(table))
        assert f"the passages of {alike} of 3 queries are equally relevant" in " ".join(found.notes)
