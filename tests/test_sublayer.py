import copy

import pytest
import tiny
import torch

from kprune.observe import masked
from kprune.sublayer import find, shrink


def keep_of(units: int, kept: list[int]) -> torch.Tensor:
    keep = torch.zeros(units, dtype=torch.bool)
    keep[kept] = True
    return keep


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
@pytest.mark.parametrize("kind", ["embedding", "classification", "question answering"])
@pytest.mark.parametrize(
    ("heads", "neurons"),
    [([0, 2], [1, 5, 40]), ([], [0]), ([3], []), ([], []), ([0, 1, 2, 3], list(range(48)))],
    ids=["some", "no heads", "one head, no neurons", "nothing", "everything"],
)
def test_removing_units_equals_masking_them(family, kind, heads, neurons):
    model = tiny.tiny_model(family, kind)
    small = copy.deepcopy(model)
    keeps = [keep_of(s.units, heads if s.kind == "attention" else neurons) for s in find(model)]
    masks = {s: keep.float() for s, keep in zip(find(model), keeps, strict=True)}
    for sublayer, keep in zip(find(small), keeps, strict=True):
        shrink(sublayer, keep)
        assert sublayer.units == int(keep.sum())
    batch = tiny.batched(tiny.texts(8))[0]
    with torch.no_grad():
        with masked(masks):
            expected = model(**batch)[0]
        actual = small(**batch)[0]
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
def test_removed_weights_are_freed(family):
    model = tiny.tiny_model(family)
    before = model.num_parameters()
    target = find(model)[1]
    shrink(target, keep_of(48, [0, 1]))
    for linear in (*target.producers, target.consumer):
        assert linear.weight.untyped_storage().nbytes() == 4 * linear.weight.numel()
    assert before - model.num_parameters() == 46 * (32 + 32 + 1)


def test_surgery_keeps_trainability_and_mode():
    model = tiny.tiny_model().train()
    for parameter in model.bert.parameters():
        parameter.requires_grad_(False)
    first, second = find(model)[:2]
    shrink(first, keep_of(4, []))
    shrink(second, keep_of(48, [0]))
    assert all(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.bert.parameters())
