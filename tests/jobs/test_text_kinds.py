"""Kinds of text models, compared with the libraries that serve them."""

import json

import pytest
import torch
import transformers
from command_line import kprune, write_checkpoint
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.models import Pooling, Transformer

from kprune.checkpoints.source import Source
from kprune.data.calibration import python_documentation
from kprune.models.batches import examples_of, regroup
from kprune.models.outputs import kind_of
from kprune.models.passes import call

TEXTS = python_documentation()[:120]
SIZE = ("--reduction", 0.5, "--align", 1, "--tokens", 1000, "--max-length", 40)


@pytest.mark.parametrize("mode", ["lasttoken", "cls", "mean"])
def test_embeddings_are_those_of_sentence_transformers(mode, tmp_path):
    write_checkpoint(tmp_path / "encoder", "embedding")
    encoder = Transformer(str(tmp_path / "encoder"), max_seq_length=40)
    folder = str(tmp_path / "embedder")
    SentenceTransformer(modules=[encoder, Pooling(32, pooling_mode=mode)], device="cpu").save(folder)
    source = Source(folder)
    assert source.pooling == mode
    model = source.load().eval()
    encoded = source.load_tokenizer()(TEXTS[:6], padding=True, truncation=True, max_length=40, return_tensors="pt")
    (batch,) = regroup(examples_of([encoded]), tokens=10_000, pad_id=0, device=torch.device("cpu")).batches
    with torch.no_grad():
        found = kind_of(model, pooling=source.pooling).read(call(model, batch), batch)
    expected = SentenceTransformer(folder, device="cpu").encode(TEXTS[:6], normalize_embeddings=True)
    assert torch.allclose(found.values, torch.tensor(expected)[found.example], atol=1e-5)


def test_a_cross_encoder_is_pruned_and_compared_on_pairs(tmp_path):
    write_checkpoint(tmp_path / "plain", "regression", max_position_embeddings=512)
    CrossEncoder(str(tmp_path / "plain"), device="cpu").save_pretrained(str(tmp_path / "reranker"))
    table = tmp_path / "pairs.jsonl"
    rows = [{"query": TEXTS[number][:50], "passage": TEXTS[-number - 1][:90]} for number in range(60)]
    table.write_text("\n".join(map(json.dumps, rows)))
    pairs = ("--data", table, "--column", "query", "--column", "passage")
    result = kprune("prune", tmp_path / "reranker", tmp_path / "small", *pairs, *SIZE)
    assert result.exit_code == 0, result.output
    against = ("--against", tmp_path / "reranker", *pairs, "--json")
    found = json.loads(kprune("evaluate", tmp_path / "small", *against).stdout)["fidelity"]
    ours, theirs = (
        CrossEncoder(str(tmp_path / name), device="cpu", activation_fn=torch.nn.Identity()).predict(
            [(row["query"], row["passage"]) for row in rows], convert_to_tensor=True
        )
        for name in ("small", "reranker")
    )
    assert [figure["name"] for figure in found] == ["rank agreement", "squared-error"]
    assert found[1]["value"] == pytest.approx(float((ours - theirs).square().mean()), rel=1e-3)


def test_a_zero_shot_model_is_a_classifier_of_pairs(tmp_path):
    names = {0: "contradiction", 1: "neutral", 2: "entailment"}
    write_checkpoint(tmp_path / "nli", id2label=names, label2id={name: number for number, name in names.items()})
    table = tmp_path / "nli.jsonl"
    rows = [{"text": text[:90], "claim": "This example is about Python."} for text in TEXTS]
    table.write_text("\n".join(map(json.dumps, rows)))
    pairs = ("--data", table, "--column", "text", "--column", "claim")
    result = kprune("prune", tmp_path / "nli", tmp_path / "small", *pairs, *SIZE, "--evaluate", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["evaluation"]["fidelity"][0]["name"] == "agreement"
    ask = transformers.pipeline("zero-shot-classification", model=str(tmp_path / "small"), device="cpu")
    assert sorted(ask(TEXTS[0][:90], ["Python", "cooking"])["labels"]) == ["Python", "cooking"]
