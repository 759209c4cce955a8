"""Records from any source: refused with a sentence, or applied as they are."""

import json
import random

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertModel

from kprune.errors import BadCheckpoint, KpruneError
from kprune.models.pruned_shape import apply, check, describe, record_of
from kprune.models.resize import shrink
from kprune.models.sublayer import find

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)
CONFIG = tiny.tiny_model().config
SOUND = {
    "quant_method": "kprune",
    "format": 1,
    "per_layer": [{"attention": 2, "ffn": 16} for _ in range(CONFIG.num_hidden_layers)],
    "history": [{"reduction": 0.5}],
}


def is_sound(record):
    """The rules of docs/format.md."""
    layers = record.get("per_layer")
    return (
        record.get("format") == 1
        and isinstance(record.get("history"), list)
        and all(isinstance(entry, dict) for entry in record["history"])
        and isinstance(layers, list)
        and len(layers) == CONFIG.num_hidden_layers
        and all(isinstance(layer, dict) and set(layer) == {"attention", "ffn"} for layer in layers)
        and all(type(units) is int for layer in layers for units in layer.values())
        and all(0 <= layer["attention"] <= 4 and 0 <= layer["ffn"] <= CONFIG.intermediate_size for layer in layers)
    )


def places(value, path=()):
    """Every place in a nested value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def put(value, path, new):
    if not path:
        return new
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[path[0]] = put(value[path[0]], path[1:], new)
    return changed


@settings(deadline=None, max_examples=1000)
@given(st.data(), values)
def test_a_mutated_record_is_refused_or_sound(data, new):
    path = data.draw(st.sampled_from([path for path in places(SOUND) if path]))
    record = put(SOUND, path, new)
    if is_sound(record):
        check(record, CONFIG)
    else:
        with pytest.raises(BadCheckpoint):
            check(record, CONFIG)


@settings(deadline=None, max_examples=500)
@given(values)
def test_whatever_stands_in_a_records_place_is_read_refused_or_not_ours(value):
    config = BertConfig(**CONFIG.to_diff_dict())
    config.quantization_config = value
    try:
        found = record_of(config)
    except KpruneError:
        return
    assert found is None or is_sound(found)


def test_a_cut_or_flipped_config_is_told():
    """Bytes of a config.json, changed at random: what transformers still reads must be sound, or be refused."""
    text = json.dumps({**CONFIG.to_dict(), "quantization_config": SOUND})
    generator = random.Random(0)
    read = refused = 0
    for _ in range(2000):
        at = generator.randrange(len(text))
        changed = text[:at] + chr(generator.randrange(32, 127)) + text[at + 1 :]
        try:
            content = json.loads(changed)
        except ValueError:
            continue
        config = BertConfig()
        config.num_hidden_layers = CONFIG.num_hidden_layers
        config.num_attention_heads, config.intermediate_size = 4, CONFIG.intermediate_size
        config.quantization_config = content.get("quantization_config")
        try:
            found = record_of(config)
            assert found is None or is_sound(found)
            read += 1
        except KpruneError:
            refused += 1
    assert read > 100
    assert refused > 20


def test_a_record_of_a_model_said_to_be_huge_takes_no_memory(monkeypatch):
    with torch.device("meta"):
        skeleton = BertModel(tiny.tiny_config("bert", intermediate_size=2**31))
    monkeypatch.setattr(torch, "arange", None)  # nothing is as long as there are units
    apply(SOUND, skeleton)
    assert {sublayer.units for sublayer in find(skeleton)} == {2, 16}


def test_a_record_tells_the_shape():
    model = tiny.tiny_model()
    assert describe(model, []) is None
    shrink(find(model)[0], torch.tensor([True, False, True, False]))
    shrink(find(model)[3], torch.zeros(find(model)[3].units, dtype=torch.bool))
    found = describe(model, [])
    assert is_sound(found)
    assert [layer["attention"] for layer in found["per_layer"]] == [2, 4, 4]
    assert [layer["ffn"] for layer in found["per_layer"]] == [CONFIG.intermediate_size, 0, CONFIG.intermediate_size]


def test_a_record_counts_key_value_heads():
    model = tiny.tiny_model("llama")
    shrink(find(model)[0], torch.tensor([False, True]))
    record = describe(model, [])
    assert record["per_layer"] == [{"attention": 1, "ffn": 48}, *2 * [{"attention": 2, "ffn": 48}]]
    check(record, model.config)
    record["per_layer"][2]["attention"] = 4  # query heads
    with pytest.raises(BadCheckpoint, match=r"layer 2 of the record has 4 attention units, the config allows 0 to 2"):
        check(record, model.config)


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
def test_a_record_applied_to_a_dense_model_gives_the_shape(family):
    model, skeleton = tiny.tiny_model(family), tiny.tiny_model(family)
    for number, sublayer in enumerate(find(model)):
        shrink(sublayer, torch.arange(sublayer.units) % 4 < number % 3)
    apply(describe(model, []), skeleton)
    shapes = [{name: value.shape for name, value in each.state_dict().items()} for each in (model, skeleton)]
    assert shapes[0] == shapes[1]
    skeleton.load_state_dict(model.state_dict())
    assert tiny.same_outputs(model, skeleton, tiny.batched(tiny.texts(8))[0])
