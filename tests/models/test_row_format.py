"""Rows as JSON and as Python source: what is written is read, and nothing else."""

import json
from dataclasses import fields, replace

import pytest
from transformers import BertConfig

from kprune.errors import BadCheckpoint, UnsupportedModel
from kprune.models.families import FAMILIES, family_of, has_row
from kprune.models.family import Block, Family
from kprune.models.row_format import BLOCK_CHECKS, FAMILY_CHECKS, RESOLVED, as_source, from_json, to_json

PLAIN = {
    name: replace(row, requires={}, otherwise=None, real_checkpoint=None)
    for name, row in FAMILIES.items()
    if not any(callable(block.dense_units) for block in row.blocks.values())
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_row_survives_json_and_source(name):
    row = PLAIN[name]
    assert from_json(json.loads(json.dumps(to_json(row)))) == row
    names = {"Family": Family, "Block": Block}
    exec(as_source(row, "ROW"), names)
    assert names["ROW"] == row


def test_every_field_is_stored_or_left_out_on_purpose():
    assert {field.name for field in fields(Block)} == set(BLOCK_CHECKS)
    assert {field.name for field in fields(Family)} == {*FAMILY_CHECKS, *RESOLVED, "blocks"}


def test_a_row_with_a_function_is_not_stored():
    with pytest.raises(UnsupportedModel, match="dense_units of the row is a function"):
        to_json(FAMILIES["gpt2"])


def changed(path: str, value: object) -> dict:
    data = to_json(PLAIN["phi3"])
    *owners, name = path.split("/")
    target = data
    for owner in owners:
        target = target[owner]
    target[name] = value
    return data


HOSTILE = {
    "layers": [
        "",
        7,
        None,
        "a b",
        "__class__",
        "layers.__dict__",
        "a..b",
        "a.",
        "layers;import os",
        "x" * 300,
        ["layers"],
    ],
    "mid_stream": ["_parameters", "", 3],
    "embeddings": ["embed-tokens", {}],
    "layer_returns": [0, -1, 10**9, True, "2", 1.0],
    "causal": [1, "true", None],
    "inputs": ["labels", 1, ["input_ids"]],
    "positions": ["a.b", "__len__"],
    "uncounted": ["<script>", "x" * 200, 5],
    "requires": [{"vocab_size": 9}],
    "otherwise": [None],
    "unknown": [1],
    "blocks": [None, {}, [], {"attention": {}}, {"ffn": {}, "attention": {}}],
    "blocks/ffn": [None, [], "mlp", {}],
    "blocks/attention/producers": [
        [],
        {"a b": 1},
        {"q": 0},
        {"q": True},
        {"q": [1, -1]},
        {"q": ["__class__"]},
        {"q": None},
    ],
    "blocks/attention/consumer": [None, "o_proj.__init__", 1],
    "blocks/attention/dense_units": ["a.b", 0, -4, 10**9, 2.5, None, "_heads"],
    "blocks/attention/unit_width": ["head_dim", [0], ["a", "b", "c"], [None]],
    "blocks/attention/counts": [[["forward", "bytes"]], [["a"]], ["a"], [["__class__", "units"]], [["a", []]], {}],
    "blocks/attention/parameters": [{"q.weight": 9}, {"q.weight": -1}, ["q.weight"], {"__dict__": 0}],
    "blocks/attention/head_bias": ["a.b", "self\n", 0],
    "blocks/attention/returns": [0, 10**6, "1"],
    "blocks/attention/cache": [None, "__dict__"],
    "blocks/attention/forward": ["x"],
}


@pytest.mark.parametrize(("path", "value"), [(path, value) for path, values in HOSTILE.items() for value in values])
def test_a_hostile_row_is_refused(path, value):
    with pytest.raises(BadCheckpoint, match=r"the record's 'family' has .*restore the folder"):
        from_json(changed(path, value))


@pytest.mark.parametrize("field", ["layers", "mid_stream", "blocks/ffn/consumer", "blocks/attention/module"])
def test_a_missing_field_is_refused(field):
    data = changed(field, "x")
    *owners, name = field.split("/")
    target = data
    for owner in owners:
        target = target[owner]
    del target[name]
    with pytest.raises(BadCheckpoint, match=name):
        from_json(data)


def test_the_record_of_a_config_has_the_row():
    config = BertConfig(model_type="bert")
    config.model_type = "unheard_of"
    assert not has_row(config)
    config.quantization_config = {"quant_method": "kprune", "family": to_json(PLAIN["bert"])}
    assert has_row(config)
    assert family_of(config) == replace(PLAIN["bert"])
    config.quantization_config = {"quant_method": "bitsandbytes", "family": to_json(PLAIN["bert"])}
    assert not has_row(config)
