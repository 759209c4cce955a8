"""Weights that do not fit the pruning record are refused."""

import shutil

import pytest
import tiny
import torch
import zoo
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, CLIPConfig, CLIPModel, CLIPTextModel, CLIPVisionModel
from uneven_model import BATCHES, change_record, uneven_result

import kprune
from kprune import prune
from kprune.checkpoints.source import Source


@pytest.fixture(scope="module")
def pruned():
    return uneven_result()


@pytest.fixture
def folder(pruned, tmp_path):
    pruned.model.save_pretrained(tmp_path / "small")
    return tmp_path / "small"


def test_weights_of_another_model_are_refused_with_what_disagrees(folder, tmp_path):
    other = kprune.prune(tiny.tiny_model(), BATCHES, reduction=0.4).model
    other.save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other/model.safetensors", folder / "model.safetensors")
    with pytest.raises(kprune.KpruneError, match=r"do not belong together"):
        AutoModelForSequenceClassification.from_pretrained(folder)


def test_shapes_that_disagree_are_told(folder):
    def one_less(record):
        layer = next(layer for layer in record["per_layer"] if layer["ffn"] > 1)
        layer["ffn"] -= 1

    change_record(folder, one_less)
    with pytest.raises(kprune.KpruneError, match=r"has shape \(.*\) in the weights and \(.*\) by the pruning record"):
        AutoModelForSequenceClassification.from_pretrained(folder)


def test_damaged_weights_are_refused(folder):
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(kprune.KpruneError, match="cannot be read"):
        AutoModelForSequenceClassification.from_pretrained(folder)


def test_a_missing_weight_is_not_made_up_in_silence(folder, capfd):
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("intermediate.dense.weight"))
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(kprune.KpruneError, match=f"{name}.* is missing"):
        AutoModelForSequenceClassification.from_pretrained(folder)


def test_a_tower_of_clip_is_pruned_saved_and_loaded(tmp_path):
    """As the refusal of a whole CLIP model advises; transformers saves such a tower under its name in the whole."""
    text = {**zoo.SIZES, "vocab_size": 99, "max_position_embeddings": 66, "eos_token_id": 2}
    config = CLIPConfig(text_config=text, vision_config=zoo.IMAGE, projection_dim=16)
    CLIPModel(config).save_pretrained(tmp_path / "whole")
    for tower in (CLIPTextModel, CLIPVisionModel):
        tower.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "tower")
        model = Source(tmp_path / "tower").load()
        inputs = zoo.batches(model, count=8)
        small = prune(model, inputs, reduction=0.4, align=1, ridge=1e-2, pooling="pooler").model
        small.save_pretrained(tmp_path / tower.__name__)
        loaded = Source(tmp_path / tower.__name__).load()
        with torch.no_grad():
            assert torch.equal(loaded(**inputs[0]).pooler_output, small(**inputs[0]).pooler_output)
