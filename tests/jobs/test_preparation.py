import json
import logging

import pytest
import torch
from command_line import write_checkpoint, write_decoder
from task_data import load_tokenizer

from kprune.checkpoints.source import Source
from kprune.config import PruneConfig, RunConfig
from kprune.data.tasks import Test, read_test
from kprune.errors import KpruneError
from kprune.jobs.data_options import DataOptions
from kprune.jobs.evaluate_checkpoint import evaluate_checkpoint, require_same_inputs
from kprune.jobs.preparation import as_read_by, float32_copy, length_limit, prepare, rows_read

pytest_plugins = ["command_fixtures"]


@pytest.fixture(scope="module")
def sample(text) -> Test:
    return DataOptions(text=text).sample_and_test(wants_test=False, seed=0)[0]


def test_pruners_share_the_sample_and_differ_in_settings(checkpoint, sample):
    prepared = prepare(Source(checkpoint), sample, None, PruneConfig(), tokens=600)
    first, other, again = (
        prepared.pruner(PruneConfig(reduction, method=method), RunConfig())
        for reduction, method in ((0.3, "kprune"), (0.3, "random"), (0.6, "kprune"))
    )
    assert first is again
    assert other is not first
    assert other.shared.sample is first.shared.sample
    assert other.shared.predictions is first.shared.predictions
    assert (first.config.method, other.config.method) == ("kprune", "random")


def test_the_sample_has_the_requested_tokens_and_length(checkpoint, sample):
    prepared = prepare(Source(checkpoint), sample, None, PruneConfig(seed=1), tokens=600, max_length=20)
    masks = [batch["attention_mask"] for batch in prepared.batches]
    assert 600 <= sum(int(mask.sum()) for mask in masks) < 620
    assert max(mask.shape[1] for mask in masks) == 20
    assert prepared.max_length == 20


def test_masked_language_models_read_masked_tokens(sample, tmp_path):
    source = Source(write_checkpoint(tmp_path / "lm", "masked language model"))
    prepared = prepare(source, sample, None, PruneConfig(), tokens=600)
    assert all((batch["input_ids"] == load_tokenizer().mask_token_id).any() for batch in prepared.batches)


def test_embedding_models_read_one_text_at_a_time(tmp_path):
    source = Source(write_checkpoint(tmp_path / "embedding", "embedding"))
    pairs = Test("pairs", None, [(f"text number {n}", f"another text, {n}") for n in range(20)], None)
    prepared = prepare(source, pairs, None, PruneConfig(), tokens=10**6)
    assert sum(len(batch["input_ids"]) for batch in prepared.batches) == 40


def test_a_test_that_does_not_fit_is_refused_before_the_sample_is_drawn(checkpoint, sample, monkeypatch):
    monkeypatch.setattr("kprune.jobs.preparation.draw", lambda *_, **__: pytest.fail("a sample was drawn"))
    wrong = Test("mine", None, [("a text",)] * 20, ["unknown class"] * 20)
    with pytest.raises(KpruneError, match="has the label 'unknown class'; use bad, fair, good, or a class number"):
        prepare(Source(checkpoint), sample, wrong, PruneConfig())


def test_an_unsupported_model_is_refused_before_its_weights_are_read(sample, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "albert", "architectures": ["AlbertModel"]}')
    monkeypatch.setattr(Source, "load", lambda source: pytest.fail("weights were loaded"))
    with pytest.raises(KpruneError, match="cannot prune an 'albert' model: one layer's weights"):
        prepare(Source(tmp_path), sample, None, PruneConfig())


def test_the_smallest_limit_of_length_is_taken(checkpoint):
    source = Source(checkpoint)
    assert length_limit(source, None) == 10**9
    assert length_limit(source, 40, None, 30) == 30


def test_only_half_precision_is_copied(checkpoint):
    half = Source(checkpoint).load()
    assert half.dtype == torch.float16
    single = float32_copy(half)
    assert (single.dtype, half.dtype) == (torch.float32, torch.float16)
    assert float32_copy(single) is single


@pytest.mark.real
def test_an_embedders_default_prompt_is_before_every_text_as_in_sentence_transformers(tmp_path):
    from sentence_transformers import SentenceTransformer

    from kprune.jobs.demo import embedded_model

    dense = SentenceTransformer(str(embedded_model().folder), prompts={"q": "query: "}, default_prompt_name="q")
    dense.save(str(tmp_path / "dense"))
    pairs = Test("pairs", None, [(f"an egg costs {n} coins", f"the price of {n} eggs") for n in range(30)], None)
    prepared = prepare(Source(tmp_path / "dense"), pairs, pairs, PruneConfig(), tokens=10**6)
    texts = [text for row in pairs.rows for text in row]
    meant = {tuple(ids) for ids in prepared.tokenizer(["query: " + text for text in texts])["input_ids"]}
    rows = [row for batch in prepared.batches for row in zip(batch["input_ids"], batch["attention_mask"], strict=True)]
    assert {tuple(ids[mask.bool()].tolist()) for ids, mask in rows} == meant
    assert all(text.startswith("query: ") for row in prepared.test.rows for text in row)

    scored = Test("scored", None, pairs.rows, [float(n % 7) for n in range(30)], ("pearson",))
    score = evaluate_checkpoint(Source(tmp_path / "dense"), scored).figures[0].value
    first, second = (torch.tensor(dense.encode(list(column))) for column in zip(*pairs.rows, strict=True))
    cosines = torch.nn.functional.cosine_similarity(first, second)
    expected = torch.corrcoef(torch.stack([cosines, torch.tensor(scored.references)]))[0, 1]
    assert score == pytest.approx(100 * float(expected), abs=1e-3)


def test_two_embedders_with_other_prompts_are_not_compared(tmp_path):
    sources = []
    for prompt in ("query: ", ""):
        folder = write_checkpoint(tmp_path / f"with {prompt}", "embedding")
        config = {"prompts": {"q": prompt}, "default_prompt_name": "q"}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
        sources.append(Source(folder))
    with pytest.raises(KpruneError, match=r"have different default prompts \('query: ' and ''\)"):
        require_same_inputs(*sources)


def test_a_reranker_with_one_text_per_row_gets_a_warning(tmp_path, caplog):
    folder = write_checkpoint(tmp_path / "reranker", "regression")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "sentence_transformers": {"version": "4.0.0"}}))
    pairs = [(f"question {n}", f"passage {n}") for n in range(40)]
    with caplog.at_level(logging.WARNING):
        prepare(Source(folder), Test("pairs", None, pairs, None), None, PruneConfig(), tokens=100)
        assert "is a reranker" not in caplog.text
        prepare(Source(folder), Test("lines", None, [row[:1] for row in pairs], None), None, PruneConfig(), tokens=100)
    assert "reranker is a reranker, and lines has one text per row" in caplog.text


def test_a_reader_of_questions_with_one_text_per_row_gets_a_warning(tmp_path, caplog):
    source = Source(write_checkpoint(tmp_path / "reader", "question answering"))
    for rows in ([("a question", "a context")], [("a text",)]):
        as_read_by(source, Test("lines", None, rows, None), "question answering")
        assert ("reader is a model for question answering, and lines has one text" in caplog.text) == (
            len(rows[0]) == 1
        )


@pytest.mark.parametrize("job", ["prune", "evaluate"])
def test_a_module_after_the_pooling_is_named_by_each_job(job, tmp_path, caplog):
    folder = write_checkpoint(tmp_path / "dense", "embedding")
    names = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in names.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    test = Test("pairs", None, [(f"one {n}", f"two {n}") for n in range(40)], [float(n) for n in range(40)])
    if job == "prune":
        prepare(Source(folder), test, None, PruneConfig(), tokens=100)
    else:
        evaluate_checkpoint(Source(folder), test)
    assert caplog.text.count("embeddings of dense are measured before 2_Dense (Dense)") == 1


def test_a_decoder_is_prepared_on_packed_blocks(tmp_path, sample):
    folder = write_decoder(tmp_path / "decoder")
    prepared = prepare(Source(folder), sample, None, PruneConfig(), tokens=600, max_length=50)
    assert [tuple(batch["input_ids"].shape) for batch in prepared.batches] == [(12, 50)]
    assert all(bool(batch["attention_mask"].all()) for batch in prepared.batches)
    longest = prepare(Source(folder), sample, None, PruneConfig(), tokens=600)
    assert longest.batches[0]["input_ids"].shape == (3, 256)


@pytest.mark.parametrize("kind", ["classification", "embedding"])
def test_a_decoder_without_a_padding_token_classifies_batches(kind, tmp_path, sample, caplog):
    folder = write_decoder(tmp_path / "decoder", kind, pad_token_id=None)
    prepared = prepare(Source(folder), sample, None, PruneConfig(), tokens=600, max_length=50)
    end = prepared.tokenizer.eos_token_id
    assert prepared.model.config.pad_token_id == (end if kind == "classification" else None)
    assert ("has no pad_token_id; it is set to" in caplog.text) == (kind == "classification")
    batch = prepared.batches[0]
    assert not bool(batch["attention_mask"].all())
    with torch.no_grad():
        whole = prepared.model(**batch)[0]
        length = int(batch["attention_mask"][0].sum())
        alone = prepared.model(input_ids=batch["input_ids"][:1, :length])[0]
    whole = whole[:1] if kind == "classification" else whole[:1, :length]
    assert torch.allclose(whole, alone, atol=1e-4)


def test_a_model_of_pairs_reads_pairs_and_an_embedder_every_text():
    ranked = read_test([{"query": "q", "passages": ["a", "b"], "relevance": [0, 1]}])
    assert rows_read(ranked, "regression") == [("q", "a"), ("q", "b")]
    assert rows_read(ranked, "embedding") == [("q",), ("a",), ("b",)]
    pairs = Test("mine", None, [("a", "b")], None)
    assert rows_read(pairs, "classification") == [("a", "b")]
    assert rows_read(pairs, "embedding") == [("a",), ("b",)]
