"""A folder that kprune 0.1.0 wrote, before the package was divided into rooms, still works.

`fixtures/format-1` is a tiny BERT classifier (`tiny.tiny_model()`), pruned by 0.5 and written by `kprune.save`.
"""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification
from uneven_model import BATCHES

import kprune
from kprune.checkpoints.inspection import inspect
from kprune.checkpoints.source import Source
from kprune.checkpoints.writer import save

FOLDER = Path(__file__).parent / "fixtures/format-1"


def record_in(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def test_an_old_folder_loads_and_round_trips(tmp_path):
    stored = load_file(FOLDER / "model.safetensors")
    for model in (AutoModelForSequenceClassification.from_pretrained(FOLDER), Source(FOLDER).load()):
        weights = model.state_dict()
        assert weights.keys() == stored.keys()
        assert all(torch.equal(weights[name], stored[name]) for name in stored)
        model.save_pretrained(tmp_path)
        again = load_file(tmp_path / "model.safetensors")
        assert again.keys() == stored.keys()
        assert all(torch.equal(again[name], stored[name]) for name in stored)
        assert record_in(tmp_path) == record_in(FOLDER)


def test_an_old_folder_is_pruned_again(tmp_path):
    source = Source(FOLDER)
    result = kprune.prune(source.load(), BATCHES, reduction=0.3)
    folder = save(result, tmp_path / "again", source=source)
    model = Source(folder).load()
    assert model.num_parameters() == result.parameters[1] < result.parameters[0] == 17587
    record = record_in(folder)
    assert record["format"] == 1
    assert record["history"][0] == record_in(FOLDER)["history"][0]
    assert len(record["history"]) == 2


def test_an_old_folder_is_inspected():
    found = inspect(FOLDER)
    assert (found.shape.heads, found.shape.neurons) == ([4, 1, 1], [32, 16, 16])
    assert found.parameters == (29075, 17587)
    assert found.length == 14.0
    assert found.flops == (677376.0, 324352.0)


@pytest.mark.parametrize("name", ["config.json", "README.md"])
def test_the_old_folder_names_no_machine(name):
    text = (FOLDER / name).read_text()
    assert not re.search(r"/(home|root|tmp|work)/", text)
