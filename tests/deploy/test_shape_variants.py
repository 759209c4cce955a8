"""Copies of a model in other shapes."""

import pytest
import tiny
import torch

from kprune.deploy.shape_variants import emptied, reshaped, stacked
from kprune.deploy.timing import random_inputs
from kprune.models.sublayer import find


@pytest.mark.parametrize("family", tiny.CORE_FAMILIES)
def test_shapes_are_what_they_say(family):
    model = tiny.tiny_model(family)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert [s.units for s in find(reshaped(model, lambda s: 3))] == [3] * len(find(model))
    assert not any(s.units for s in find(emptied(model)))
    assert [s.units for s in find(stacked(model, 1, 5))] == [s.units for s in find(model)[2:4]] * 5
    inputs = random_inputs(model.config, 2, 9, model.device)
    for other in (reshaped(model, lambda s: 3), emptied(model), stacked(model, 0, 0), stacked(model, 1, 5)):
        with torch.no_grad():
            assert other(**inputs).logits.shape == model(**inputs).logits.shape
    assert stacked(model, 1, 5).config.num_hidden_layers == 5
    assert model.config.num_hidden_layers == 3
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_middle_of_the_model_is_all_that_is_left_out_of_stacked():
    model = tiny.tiny_model()
    bare = stacked(model, 0, 0)
    layers = sum(p.numel() for p in model.base_model.encoder.parameters())
    assert model.num_parameters() - bare.num_parameters() == layers


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
@pytest.mark.parametrize("count", [0, 2, 5])
def test_every_stacked_layer_runs(family, count):
    """Some decoders run only as many layers as their config has."""
    model = stacked(tiny.tiny_model(family), 1, count)
    calls = []
    for sublayer in find(model)[::2]:
        sublayer.layer.register_forward_hook(lambda *arguments: calls.append(1))
    with torch.no_grad():
        model(**random_inputs(model.config, 2, 9, model.device))
    assert len(calls) == count
