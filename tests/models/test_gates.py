"""Gates: a gated pass is that of a model without the closed units, for each input by itself."""

import copy

import pytest
import tiny
import torch

from kprune.models.gates import Gates, gates_of
from kprune.models.hooks import on_residual
from kprune.models.sublayer import find
from kprune.models.subnetwork import shrunk
from kprune.pruning.budgets import FLOPS, flops_per_unit

LENGTH, SIZE = 14.0, 16
FAMILIES = ["bert", "distilbert", "modernbert", "mpnet", "llama", "opt"]


def gated(family="bert"):
    """A dense classifier, a copy of it with gates that depend on their inputs, and the gates."""
    dense = tiny.tiny_model(family)
    model = copy.deepcopy(dense)
    torch.manual_seed(3)
    gates = Gates(model, find(model), [FLOPS.price(each, LENGTH) for each in find(model)], SIZE)
    for gate in gates.gates:
        torch.nn.init.normal_(gate.write.weight)
        torch.nn.init.zeros_(gate.write.bias)
    return dense, model.eval(), gates


def chosen_units(dense, gates, row, threshold=0.0):
    """Masks of the units that stay for one input, found bottom-up in models without the units closed so far."""
    masks = [torch.ones(sublayer.units, dtype=torch.bool) for sublayer in find(dense)]
    for number, gate in enumerate(gates.gates):
        model, streams = shrunk(dense, masks), []
        with on_residual(find(model)[number], streams.append, row["input_ids"].shape):
            model(**row)
        hidden = (gate.read.weight @ streams[0][0].mean(0) + gate.read.bias).clamp(min=0)
        opened = gate.write.weight @ hidden + gate.write.bias > threshold
        size = SIZE if find(dense)[number].kind == "ffn" else 1
        masks[number] = opened[torch.arange(len(masks[number])) // size]
    return masks


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_gated_pass_is_that_of_a_model_of_the_open_units(family):
    dense, model, gates = gated(family)
    texts = tiny.texts(6)
    (batch,) = tiny.batched(texts)
    gates.restart()
    found = model(**batch).logits
    costs, shares = [], []
    for number, tokens in enumerate(texts):
        row = {"input_ids": tokens[None], "attention_mask": torch.ones_like(tokens)[None]}
        masks = chosen_units(dense, gates, row)
        torch.testing.assert_close(found[number], shrunk(dense, masks)(**row).logits[0], rtol=1e-4, atol=1e-4)
        open_units = zip(find(dense), masks, strict=True)
        costs.append(sum(flops_per_unit(sublayer, LENGTH) * int(keep.sum()) for sublayer, keep in open_units))
        shares.append(torch.cat(masks).float().mean())
    assert len(set(costs)) > 1  # inputs differ in their units
    assert 0.1 < torch.stack(shares).mean() < 0.9
    predictors = sum(2 * weights.numel() for name, weights in gates.named_parameters() if name.endswith("weight"))
    assert gates.mean_cost == pytest.approx(predictors + sum(costs) / len(costs))


@torch.no_grad()
def test_open_gates_give_the_dense_model_and_closed_ones_none_of_its_units():
    dense, model, gates = gated()
    (batch,) = tiny.batched(tiny.texts(6))
    gates.set_threshold(-1e6)
    assert torch.equal(model(**batch).logits, dense(**batch).logits)
    gates.set_threshold(1e6)
    none = shrunk(dense, [torch.zeros(sublayer.units, dtype=torch.bool) for sublayer in find(dense)])
    torch.testing.assert_close(model(**batch).logits, none(**batch).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_padding_decides_nothing():
    _, model, _ = gated()
    texts = tiny.texts(6)
    (short,), (long,) = tiny.batched(texts), tiny.batched(texts, extra=9)
    torch.testing.assert_close(model(**short).logits, model(**long).logits, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_copy_has_gates_of_its_own():
    _, model, _ = gated()
    (batch,) = tiny.batched(tiny.texts(6))
    before = model(**batch).logits
    twin = copy.deepcopy(model)
    gates_of(twin).set_threshold(1e6)
    assert not torch.allclose(twin(**batch).logits, before)
    assert torch.equal(model(**batch).logits, before)


def test_the_gradient_of_a_drawn_gate_is_that_of_the_sigmoid():
    _, model, gates = gated()
    (batch,) = tiny.batched(tiny.texts(64), size=64)
    model.train()
    torch.manual_seed(0)
    model(**batch)
    assert gates.last.shape == (64,)
    gates.last.mean().backward()
    assert all(bool(gate.write.bias.grad.gt(0).all()) for gate in gates.gates)  # a larger logit costs more
    drawn = gates.last.detach()
    torch.manual_seed(1)
    model(**batch)
    assert not torch.equal(drawn, gates.last.detach())
    assert gates_of(tiny.tiny_model()) is None
