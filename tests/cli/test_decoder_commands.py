"""Decoders from the command line: prune, evaluate, load, write."""

import json
import math
import re

import pytest
import torch
from command_line import kprune, write_decoder, write_text
from task_data import load_decoder_tokenizer
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from kprune.data.calibration import python_documentation


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return write_decoder(tmp_path_factory.mktemp("decoder") / "dense")


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """A table of documents, as of C4."""
    path = tmp_path_factory.mktemp("data") / "documents.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in python_documentation()[:200]))
    return path


@pytest.fixture(scope="module")
def run(dense, documents, tmp_path_factory):
    """A decoder that was pruned and tested by one command: the folder, and what was printed."""
    folder = tmp_path_factory.mktemp("pruned") / "small"
    data = ("--task", "c4", "--data", documents, "--tokens", 2000, "--max-length", 64)
    test = ("--evaluate", "--window", 128, "--limit", 5, "--json")
    result = kprune("prune", dense, folder, *data, *test, "--reduction", 0.3, "--align", 1)
    assert result.exit_code == 0, result.output
    return folder, json.loads(result.stdout)


def plain_perplexity(folder, documents, windows, length):
    """Perplexity by plain transformers on the second half of the documents."""
    rows = [json.loads(line)["text"] for line in documents.read_text().splitlines()]
    tokens = load_decoder_tokenizer()("\n\n".join(rows[100:]))["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    losses = []
    for number in range(windows):
        ids = torch.tensor([tokens[number * length : (number + 1) * length]])
        with torch.no_grad():
            losses.append(float(model(ids, labels=ids).loss))
    return math.exp(sum(losses) / windows)


def test_a_decoder_is_pruned_and_tested(run, dense, documents):
    folder, printed = run
    evaluation = printed["evaluation"]
    assert (printed["tokens"], printed["examples"]) == (2048, 32)
    assert (evaluation["test"], evaluation["examples"], evaluation["resampled"]) == ("c4", 5, 5)
    assert "5 windows of 128 tokens with a stride of 128" in evaluation["notes"][0]
    for figures, where in ((evaluation["figures"], folder), (evaluation["against"], dense)):
        assert figures[0]["value"] == pytest.approx(plain_perplexity(where, documents, 5, 128), rel=1e-4)
    assert [figure["name"] for figure in evaluation["fidelity"]] == ["agreement", "divergence"]


def test_the_cards_code_loads_the_decoder_and_writes(run, monkeypatch, capsys):
    folder, _ = run
    card = (folder / "README.md").read_text()
    assert "of the decoder's FLOPs" in card
    assert "| perplexity |" in card
    monkeypatch.chdir(folder.parent)
    exec(re.search(r"```python\n(.*?)```", card, re.DOTALL)[1], {})
    assert capsys.readouterr().out.startswith("Once upon a time")


def test_pruned_and_dense_are_compared_on_any_text(run, dense, tmp_path):
    folder, _ = run
    text = write_text(tmp_path / "lines.txt", 40)
    result = kprune("evaluate", folder, "--against", dense, "--text", text, "--window", 64, "--stride", 32)
    assert result.exit_code == 0, result.output
    for words in ("perplexity", "agreement", "divergence", "of 64 tokens with a stride of 32"):
        assert words in result.output


def test_a_classifier_on_a_decoder_without_a_padding_token(documents, tmp_path, caplog):
    dense = write_decoder(tmp_path / "dense", "classification")
    data = ("--data", documents, "--tokens", 1500, "--max-length", 64)
    result = kprune("prune", dense, tmp_path / "small", *data, "--evaluate", "--limit", 20, "--reduction", 0.3)
    assert result.exit_code == 0, result.output
    assert "has no pad_token_id; it is set to 0, <end>" in caplog.text
    small = AutoModelForSequenceClassification.from_pretrained(tmp_path / "small")
    assert small.config.pad_token_id == load_decoder_tokenizer().eos_token_id
