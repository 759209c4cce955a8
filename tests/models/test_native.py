"""Native models: the config alone describes them, so that transformers loads them where kprune does not exist."""

import json

import pytest
import tiny
import torch
import zoo
from native_models import NATIVE, REFUSED, native_model
from transformers import AutoConfig, AutoModel

from kprune.errors import BadCheckpoint, UnsupportedModel
from kprune.models.native import become_native, dense_config, history_of, native_record_of, set_history, unit_limits
from kprune.models.pruned_shape import dense_units
from kprune.models.resize import add_bias, keep_first
from kprune.models.sublayer import find

FEWER_HEADS = {
    *("nomic_bert", "gte", "eurobert", "umt5", "umt5/plain", "vit", "deit"),
    *("llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma", "gemma2", "gemma3_text", "phi3", "starcoder2"),
}
"""Families whose configs have a width of heads that does not follow from the hidden size."""


@pytest.mark.parametrize(("name", "kind"), NATIVE)
def test_the_config_says_the_units_and_keeps_the_history(name, kind, tmp_path):
    dense, model = zoo.build(name, kind), native_model(name, kind)
    model.config.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert "quantization_config" not in stored
    config = AutoConfig.from_pretrained(tmp_path)
    units = {sublayer.kind: sublayer.units for sublayer in find(model)}
    assert dense_units(config) == units
    assert (units["attention"] < dense_units(dense.config)["attention"]) == (name in FEWER_HEADS)
    assert history_of(config) == [{"kprune": "0.2.0"}]
    assert dense_units(dense_config(config)) == dense_units(dense.config)
    with torch.device("meta"):
        again = type(dense)(dense_config(config))
    assert {n: p.shape for n, p in again.named_parameters()} == {n: p.shape for n, p in dense.named_parameters()}


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_cannot_be_native_is_refused_with_its_reason(name):
    with pytest.raises(UnsupportedModel, match=f"cannot keep a {name!r} model native: {REFUSED[name]}"):
        unit_limits(zoo.build(name))


def test_a_model_with_an_added_bias_is_refused():
    model = zoo.build("llama")
    add_bias(find(model)[0])
    with pytest.raises(UnsupportedModel, match="biases were added"):
        unit_limits(model)


def test_limits_follow_the_narrowest_layer():
    model = zoo.build("nomic_bert")
    assert unit_limits(model) == {"attention": (1, 4), "ffn": (1, 48)}
    keep_first(find(model)[0], 3)
    keep_first(find(model)[3], 20)
    assert unit_limits(model) == {"attention": (1, 3), "ffn": (1, 20)}
    keep_first(find(model)[1], 0)
    with pytest.raises(UnsupportedModel, match=r"has \[0, 20, 48\] ffn units in its layers"):
        unit_limits(model)


def test_heads_removed_before_are_refused_where_no_config_can_say_it():
    model = tiny.tiny_model("bert")
    assert unit_limits(model) == {"attention": (4, 4), "ffn": (1, 48)}
    for sublayer in find(model):
        keep_first(sublayer, 3 if sublayer.kind == "attention" else 48)
    with pytest.raises(UnsupportedModel, match=r"has \[3\] attention units in its layers"):
        unit_limits(model)


def test_a_second_time_the_dense_counts_are_those_of_the_first(tmp_path):
    native_model("nomic_bert").save_pretrained(tmp_path)
    model = AutoModel.from_pretrained(tmp_path)
    for sublayer in find(model):
        keep_first(sublayer, 1 if sublayer.kind == "attention" else 8)
    become_native(model, [*history_of(model.config), {"second": True}])
    assert dense_units(model.config) == {"attention": 1, "ffn": 8}
    assert dense_units(dense_config(model.config)) == {"attention": 4, "ffn": 48}
    set_history(model.config, [{"other": True}])
    assert history_of(model.config) == [{"other": True}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 9}, "not a record of format 1"),
        ({"history": "x"}, "has the history 'x'"),
        ({"history": [1]}, "has the history"),
        ({"dense": {"attention": 4}}, "has the dense counts"),
        ({"dense": {"attention": 4, "ffn": True}}, "has the dense counts"),
        ({"dense": {"attention": 4, "ffn": 1}}, "and the config"),
    ],
)
def test_a_tampered_record_is_refused(changes, message):
    config = native_model("bert").config
    config.kprune = {**config.kprune, **changes}
    with pytest.raises(BadCheckpoint, match=message):
        dense_config(config)


def test_another_programs_entry_is_no_record():
    config = tiny.tiny_config("bert")
    assert native_record_of(config) is None
    assert history_of(config) == []
    config.kprune = "text"
    with pytest.raises(BadCheckpoint, match="is 'text', not a record"):
        native_record_of(config)
