"""Biases given to consumers that have none: they change nothing while zero, and are saved and loaded."""

import copy

import pytest
import torch
import zoo

from kprune.errors import BadCheckpoint
from kprune.models.canonical import to_canonical
from kprune.models.passes import run
from kprune.models.pruned_shape import apply, check, describe
from kprune.models.resize import add_bias, drop_zero_bias, keep_first
from kprune.models.sublayer import find

WITHOUT_BIAS = [
    "llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma", "gemma2", "gemma3_text", "phi3", "eurobert", "nomic_bert",
    "modernbert", "t5", "mt5", "umt5", "umt5/plain",
]  # fmt: skip
"""Families of which some consumer has no bias."""


def without_units(name):
    """A model with an emptied FFN and an emptied attention block; other sublayers lose a unit."""
    model = zoo.build(name)
    to_canonical(model)
    for number, sublayer in enumerate(find(model)):
        keep_first(sublayer, 0 if number in (1, 2) else sublayer.units - 1)
    return model


def outputs_of(model):
    with torch.no_grad():
        return run(model, zoo.batches(model)[0])[0]


@pytest.mark.parametrize("name", zoo.marked(zoo.ZOO))
def test_a_bias_of_zeros_changes_no_output(name):
    model = without_units(name)
    before = outputs_of(model)
    biased = copy.deepcopy(model)
    had = [sublayer.consumer.bias is not None for sublayer in find(model)]
    assert all(had) == (name not in WITHOUT_BIAS)
    for sublayer, had_bias in zip(find(biased), had, strict=True):
        add_bias(sublayer)
        assert sublayer.consumer.bias is not None
        assert sublayer.has_added_bias == (not had_bias)
    torch.testing.assert_close(outputs_of(biased), before, rtol=1e-5, atol=1e-6 * float(before.abs().max()))
    for sublayer in find(biased):
        drop_zero_bias(sublayer)
    assert biased.state_dict().keys() == model.state_dict().keys()
    assert describe(biased, []) == describe(model, [])
    assert torch.equal(outputs_of(biased), before)


def biased_model(name):
    """A model of which some consumers got a bias that is not zero, among them emptied ones."""
    model = without_units(name)
    for number, sublayer in enumerate(find(model)[:5]):
        add_bias(sublayer)
        sublayer.consumer.bias.data += 0.1 * (number + 1)
    return model


@pytest.mark.parametrize("name", dict.fromkeys([*zoo.DECODERS, *WITHOUT_BIAS]))
def test_added_biases_are_saved_and_loaded(name, tmp_path):
    model = biased_model(name)
    model.config.quantization_config = record = describe(model, [])
    assert ("biased" in record) == (name in WITHOUT_BIAS)
    check(record, model.config)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(outputs_of(loaded), outputs_of(model))
    assert describe(loaded, []) == record
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    again = copy.deepcopy(loaded)  # a bias that was fitted stays
    for sublayer in find(again):
        drop_zero_bias(sublayer)
    assert describe(again, []) == record


def test_a_record_names_the_sublayers_with_an_added_bias():
    model = zoo.build("llama")
    add_bias(find(model)[0])
    add_bias(find(model)[3])
    record = describe(model, [])  # also of a model that lost no unit
    assert record["biased"] == [["attention"], ["ffn"], []]
    other = zoo.build("llama")
    apply(record, other)
    assert [sublayer.has_added_bias for sublayer in find(other)] == [True, False, False, True, False, False]
    # An emptied sublayer keeps the note.
    keep_first(find(other)[0], 0)
    assert describe(other, [])["biased"] == record["biased"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, "the record's 'biased' is True, not a list for each of 3 layers"),
        ([[]], r"the record's 'biased' is \[\[\]\], not a list for each of 3 layers"),
        ([[], [], "ffn"], "'biased' of layer 2 is 'ffn', not a list of"),
        ([[], [], ["ffn", "ffn"]], r"'biased' of layer 2 is \['ffn', 'ffn'\]"),
        ([[], ["norm"], []], r"'biased' of layer 1 is \['norm'\], not a list of \['attention', 'ffn'\]"),
        ([[], [[]], []], r"'biased' of layer 1 is \[\[\]\]"),
    ],
    ids=str,
)
def test_a_wrong_note_of_biases_is_refused(value, message):
    model = without_units("llama")
    record = describe(model, [])
    with pytest.raises(BadCheckpoint, match=message):
        check({**record, "biased": value}, model.config)
    check({**record, "biased": None}, model.config)
