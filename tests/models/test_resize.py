import copy

import pytest
import tiny
import torch
import zoo

from kprune.models.hooks import masked
from kprune.models.resize import PassThrough, columns_of, keep_first, shrink
from kprune.models.sublayer import find

KINDS = ["embedding", "classification", "question answering"]
CASES = [case for case in tiny.ALL_CASES if case[1] in KINDS]


@pytest.fixture(scope="module")
def dense():
    """A model per family and kind, which no test may change."""
    models = {}
    return lambda *case: models.setdefault(case, None) or models.update({case: tiny.tiny_model(*case)}) or models[case]


def keep_of(units: int, kept: list[int]) -> torch.Tensor:
    keep = torch.zeros(units, dtype=torch.bool)
    keep[[number for number in kept if number < units]] = True
    return keep


def masked_and_shrunk(model, keeps):
    """Outputs of a model with masked units, and of a copy without them."""
    small = copy.deepcopy(model)
    masks = {s: keep.float() for s, keep in zip(find(model), keeps, strict=True)}
    for sublayer, keep in zip(find(small), keeps, strict=True):
        shrink(sublayer, keep)
        assert sublayer.units == int(keep.sum())
    batch = tiny.batched(tiny.texts(8))[0]
    with torch.no_grad():
        with masked(masks, batch["input_ids"].shape):
            expected = model(**batch)[0]
        return small(**batch)[0], expected


@pytest.mark.parametrize(("family", "kind"), CASES)
@pytest.mark.parametrize(
    ("heads", "neurons"),
    [([0, 2], [1, 5, 40]), ([], [0]), ([3], []), ([], []), ([0, 1, 2, 3], list(range(48)))],
    ids=["some", "no heads", "one head, no neurons", "nothing", "everything"],
)
def test_removing_units_equals_masking_them(family, kind, heads, neurons, dense):
    model = dense(family, kind)
    keeps = [keep_of(s.units, heads if s.kind == "attention" else neurons) for s in find(model)]
    actual, expected = masked_and_shrunk(model, keeps)
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
@pytest.mark.parametrize("seed", range(5))
def test_removing_random_units_equals_masking_them(family, seed, dense):
    model = dense(family, tiny.SEAM_KINDS[seed % 2])
    generator = torch.Generator().manual_seed(seed)
    keeps = [torch.rand(s.units, generator=generator) < torch.rand((), generator=generator) for s in find(model)]
    actual, expected = masked_and_shrunk(model, keeps)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
def test_keeping_the_first_units_is_removing_the_others(family, dense):
    model = dense(family, "embedding")
    batch = tiny.batched(tiny.texts(8))[0]
    for counts in ((1, 5), (0, 48), (2, 0)):
        by_slice, by_mask = copy.deepcopy(model), copy.deepcopy(model)
        for one, two in zip(find(by_slice), find(by_mask), strict=True):
            units = counts[one.kind == "ffn"]
            shrink(two, torch.arange(two.units) < units)
            keep_first(one, units)
            keep_first(one, 1000)  # more than there are: nothing is removed
        assert [s.units for s in find(by_slice)] == [s.units for s in find(by_mask)]
        ours, theirs = by_slice.state_dict(), by_mask.state_dict()
        assert list(ours) == list(theirs)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        assert tiny.same_outputs(by_slice, by_mask, batch)


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
@pytest.mark.parametrize("number", [0, 1])
def test_an_emptied_sublayer_runs_and_adds_its_bias(family, number, dense):
    model = copy.deepcopy(dense(family, "embedding"))
    target = find(model)[number]
    bias = target.consumer.bias
    shrink(target, torch.zeros(target.units, dtype=torch.bool))
    assert isinstance(target.module, PassThrough)
    outputs = []
    with torch.no_grad(), target.consumer.register_forward_hook(lambda m, args, output: outputs.append(output)):
        assert model(**tiny.batched(tiny.texts(8))[0])[0].isfinite().all()
    expected = torch.zeros(32) if bias is None else bias
    assert torch.equal(outputs[0], expected.expand_as(outputs[0]))


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
def test_removed_weights_are_freed(family, dense):
    model = copy.deepcopy(dense(family, "classification"))
    before = model.num_parameters()
    target = find(model)[1]
    per_neuron = target.weights_per_unit + sum(linear.bias is not None for linear in target.producers)
    shrink(target, keep_of(48, [0, 1]))
    for linear in (*target.producers, target.consumer):
        assert linear.weight.untyped_storage().nbytes() == 4 * linear.weight.numel()
        assert linear.weight.shape == (linear.out_features, linear.in_features)
    assert before - model.num_parameters() == 46 * per_neuron
    if family in tiny.CORE_FAMILIES:
        assert per_neuron == 32 + 32 + 1


def test_surgery_keeps_trainability_and_mode():
    model = tiny.tiny_model().train()
    for parameter in model.bert.parameters():
        parameter.requires_grad_(False)
    first, second = find(model)[:2]
    shrink(first, keep_of(4, []))
    shrink(second, keep_of(48, [0]))
    assert all(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.bert.parameters())


def test_columns_belong_to_the_kept_units():
    assert columns_of(torch.tensor([True, False, True]), 2).tolist() == [0, 1, 4, 5]
    assert columns_of(torch.zeros(3, dtype=torch.bool), 4).tolist() == []


@pytest.mark.parametrize(("first", "second"), [("eager", "sdpa"), ("sdpa", "eager")])
def test_a_layer_with_its_own_counts_follows_the_models_config(first, second):
    """Phi-3 reads its heads from the config: a pruned layer sees later changes of everything else in it."""
    model = zoo.build("phi3")
    model.set_attn_implementation(first)
    shrink(find(model)[0], torch.tensor([True, False]))
    batch = zoo.batches(model)[0]
    for copied in (model, copy.deepcopy(model)):
        with torch.no_grad():
            expected = copied(**batch).logits
            copied.set_attn_implementation(second)
            torch.testing.assert_close(copied(**batch).logits, expected, rtol=1e-4, atol=1e-4)
