"""The model card of a checkpoint."""

import copy
from dataclasses import replace

import huggingface_hub
import pytest
import tiny
from uneven_model import BATCHES, uneven_result

import kprune
from kprune.checkpoints.card import model_card
from kprune.checkpoints.source import Source
from kprune.checkpoints.writer import save


@pytest.fixture(scope="module")
def pruned():
    return uneven_result()


def test_a_card_says_what_was_done(pruned, tmp_path):
    folder = save(pruned, tmp_path / "small")
    card = (folder / "README.md").read_text()
    assert f"kprune removed {pruned.reduction:.1%} of the encoder's FLOPs" in card
    assert 'BertForSequenceClassification.from_pretrained("small")' in card
    assert all(f"| {s.layer} | {s.kind} | {len(s.kept)} of {s.units} |" in card for s in pruned.steps)
    assert pruned.config.describe() in card


@pytest.mark.parametrize("sentence_class", [None, "SentenceTransformer", "CrossEncoder"])
def test_the_hub_reads_the_front_matter(pruned, sentence_class):
    card = model_card(pruned, source="a/model", folder="small", sentence_class=sentence_class, base_model="a/model")
    data = huggingface_hub.ModelCard(card).data
    assert data.library_name == ("sentence-transformers" if sentence_class else "transformers")
    assert data.tags == ["kprune", "pruned"]
    assert data.base_model == "a/model"
    call = sentence_class or "BertForSequenceClassification.from_pretrained"
    assert f'import {sentence_class or "BertForSequenceClassification"}\n\nmodel = {call}("small")' in card


def test_a_card_advises_what_is_true(pruned):
    card = model_card(pruned, source="x", folder="x")
    assert "pip install" not in card
    assert "Install kprune from its repository." in card
    assert "warns of an unknown quantization type" in card
    assert "Do not pass `ignore_mismatched_sizes=True` then" in card


def test_a_local_path_is_not_in_the_card(pruned, tmp_path):
    pruned.model.save_pretrained(tmp_path / "my model")
    for source in (Source(tmp_path / "my model"), Source(tmp_path / "my model", name=str(tmp_path / "my model"))):
        folder = save(pruned, tmp_path / "out", source=source, overwrite=True)
        card = (folder / "README.md").read_text()
        assert "\n# my model, pruned\n" in card
        assert str(tmp_path) not in card
        assert huggingface_hub.ModelCard(card).data.base_model is None


@pytest.mark.parametrize(
    ("name", "title", "base"),
    [
        ("org/model", "org/model", "org/model"),
        ("old-name", "old-name", "old-name"),
        ("/cache/models--org--model/snapshots/0123abc", "org/model", "org/model"),
        ("/home/me/models/sst2", "sst2", None),
        ("./sst2", "sst2", None),
        ("", "bert", None),
    ],
)
def test_title_and_base_model_without_a_source(name, title, base, pruned, tmp_path):
    model = copy.deepcopy(pruned.model)
    model.config._name_or_path = name
    card = (save(replace(pruned, model=model), tmp_path / "small") / "README.md").read_text()
    assert f"\n# {title}, pruned\n" in card
    assert huggingface_hub.ModelCard(card).data.base_model == base


def test_a_hub_name_is_the_base_model_of_all_prunings(tmp_path):
    dense = tmp_path / "models--org--dense/snapshots/0123abc"
    tiny.tiny_model().save_pretrained(dense)
    first_source = Source(dense, name="org/dense")
    first = kprune.prune(first_source.load(), BATCHES, reduction=0.3)
    save(first, tmp_path / "first", source=first_source)
    source = Source(tmp_path / "first")
    second = kprune.prune(source.load(), BATCHES, reduction=0.3, seed=1)
    cards = [
        (save(second, tmp_path / name, source=given) / "README.md").read_text()
        for name, given in {"with source": source, "without": None}.items()
    ]
    for card in cards:
        assert "\n# first, pruned\n" in card
        assert huggingface_hub.ModelCard(card).data.base_model == "org/dense"
        assert "The model was pruned 2 times." in card
        for number, run in enumerate((first, second), 1):
            before, after = run.parameters
            row = f"| {number} | kprune | {run.reduction:.1%} | {before:,} | {after:,} | {run.tokens:,} | "
            assert row in card
    assert "All prunings" not in (tmp_path / "first/README.md").read_text()


def test_a_damaged_history_still_gives_a_card(pruned):
    model = copy.deepcopy(pruned.model)
    model.config.quantization_config["history"] = [{"flops": "x|y", "tokens": [], "kprune": "a | b"}, {}]
    card = model_card(replace(pruned, model=model), source="x", folder="x")
    assert "| 1 | kprune | – | – | – | – | a b |" in card


def test_a_card_has_the_section_of_any_result_and_the_note(pruned):
    class Result:
        def card_section(self) -> str:
            return "## What was lost\n\nNothing.\n"

    card = model_card(pruned, source="x", folder="x", evaluation=Result(), note="Twice as fast.")
    assert "Twice as fast.\n\n## Load\n" in card
    assert "\n\n## What was lost\n\nNothing.\n\n## How it was made\n\n" in card
