"""Sub-networks against masks on the larger model."""

import copy

import pytest
import torch
import zoo

from kprune.models.batches import examples_of, regroup
from kprune.models.hooks import masked
from kprune.models.passes import call
from kprune.models.sublayer import find
from kprune.models.subnetwork import Subnetwork


def random_masks(model, empty):
    generator = torch.Generator().manual_seed(0)
    keeps = [torch.rand(sublayer.units, generator=generator) < 0.5 for sublayer in find(model)]
    for number, keep in enumerate(keeps):
        keep[0] = True
        keep &= number not in empty
    return keeps


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2", "modernbert"])
def test_outputs_and_gradients_are_those_of_the_masked_model(family):
    model = zoo.build(family, "classification")
    sample = regroup(examples_of(zoo.batches(model)), tokens=1000, pad_id=1, device=torch.device("cpu"))
    (batch,) = sample.batches
    keeps = random_masks(model, empty=(2, 3))
    network = Subnetwork(model, keeps)
    with torch.no_grad():  # the larger model changes, and the network follows
        for parameter in model.parameters():
            parameter.mul_(1.1)
    network.load()
    whole = copy.deepcopy(model)
    masks = {sublayer: keep.float() for sublayer, keep in zip(find(whole), keeps, strict=True)}
    with masked(masks, batch.mask.shape):
        expected = call(whole, batch).logits
    found = call(network.model, batch).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for _ in range(2):  # gradients add up
        call(network.model, batch).logits.square().sum().backward()
        network.hand_over_gradients()
    expected.square().sum().backward()
    theirs = dict(whole.named_parameters())
    for name, parameter in model.named_parameters():
        wanted = torch.zeros_like(parameter) if theirs[name].grad is None else 2.0 * theirs[name].grad
        ours = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-3 * (1.0 + float(wanted.abs().max())))
    shared = set(map(id, model.parameters()))
    own = [parameter for parameter in network.model.parameters() if id(parameter) not in shared]
    assert 0 < len(own) < len(list(model.parameters()))
    assert all(parameter.grad is None for parameter in own)
