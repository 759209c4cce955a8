import pytest
import tiny
import torch
from torch.utils.flop_counter import FlopCounterMode

from kprune.errors import KpruneError
from kprune.models.families import family_of
from kprune.models.resize import shrink
from kprune.models.sublayer import find
from kprune.pruning.budgets import BUDGETS, Budget, budget_named, flops_per_unit, parameters_per_unit, total_flops


def counted(model, length: int) -> float:
    """FLOPs of the layers alone, as torch counts the matrix products that run."""
    path = f"{type(model).__name__}.{family_of(model.config).layers}"
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.full((1, length), 7))
    counts = counter.get_flop_counts()
    layers = range(model.config.num_hidden_layers)
    total = sum(sum(counts.get(f"{path}.{layer}", {}).values()) for layer in layers)  # an emptied layer has none
    if family_of(model.config).causal:  # eager attention computes the pairs that the mask hides
        hidden = length * length - length * (length + 1) / 2
        total -= sum(4 * hidden * sublayer.features for sublayer in find(model) if sublayer.kind == "attention")
    return total


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
@pytest.mark.parametrize("length", [7, 40])
def test_flops_agree_with_torchs_own_counter(family, length):
    model = tiny.tiny_model(family, "embedding", attn_implementation="eager")
    assert total_flops(find(model), length) == pytest.approx(counted(model, length), rel=1e-3)
    # One layer with fewer units, one with emptied sublayers, one whole.
    for sublayer in find(model)[:2]:
        shrink(sublayer, torch.arange(sublayer.units) % 3 == 0)
    for sublayer in find(model)[2:4]:
        shrink(sublayer, torch.zeros(sublayer.units, dtype=torch.bool))
    assert total_flops(find(model), length) == pytest.approx(counted(model, length), rel=1e-3)


def test_the_papers_formulas_per_sublayer():
    attention, ffn = find(tiny.tiny_model())[:2]
    s, d, width = 12.5, 32, 8
    assert flops_per_unit(attention, s) == 8 * s * d * width + 4 * s * s * width
    assert flops_per_unit(ffn, s) == 4 * s * d


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
@pytest.mark.parametrize("number", [0, 1])
def test_the_price_of_parameters_is_what_a_removal_frees(family, number):
    model = tiny.tiny_model(family)
    target = find(model)[number]
    price = BUDGETS["parameters"].price(target, 10.0)
    before, units = model.num_parameters(), target.units
    assert len(price) == units + 1
    assert parameters_per_unit(target) == price[1]
    shrink(target, torch.arange(units) < units // 2)
    assert before - model.num_parameters() == price[units] - price[units // 2]


def test_budgets_are_found_by_name():
    own = Budget("own", lambda sublayer, length: torch.arange(sublayer.units + 1.0))
    assert budget_named(own) is own
    assert budget_named("flops") is BUDGETS["flops"]
    for unknown in ("watts", 3, None):
        with pytest.raises(KpruneError, match=f"unknown budget {unknown!r}; use one of flops, parameters"):
            budget_named(unknown)
