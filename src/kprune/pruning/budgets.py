"""Budgets: what `reduction` is a share of. FLOPs, parameters, or anything else with a price per number of units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kprune.config import NamedBudget
from kprune.errors import KpruneError
from kprune.maths.flops import unit_flops
from kprune.models.sublayer import Sublayer


@dataclass(frozen=True)
class Budget:
    """What units cost."""

    name: str
    price: Callable[[Sublayer, float], Tensor]
    """Cost of 0, 1, 2, … units of a sublayer together, for inputs of a given length; (units + 1,), never falling."""


def flops_per_unit(sublayer: Sublayer, length: float) -> float:
    """FLOPs of one unit on one input of `length` tokens, rounded to a whole number so that sums are exact."""
    attended = sublayer.width if sublayer.kind == "attention" else 0
    return float(round(unit_flops(sublayer.weights_per_unit, length, attended, causal=sublayer.family.causal)))


def total_flops(sublayers: Sequence[Sublayer], length: float) -> float:
    """FLOPs of all units of the sublayers on one input of `length` tokens."""
    return sum(flops_per_unit(sublayer, length) * sublayer.units for sublayer in sublayers if sublayer.units)


def parameters_per_unit(sublayer: Sublayer) -> float:
    """Weights and biases that belong to one unit."""
    others = sum(linear.bias.numel() for linear in sublayer.producers if linear.bias is not None)
    others += sum(sublayer.layer.get_parameter(path).numel() for path in sublayer.parameters)
    return float(sublayer.weights_per_unit + others // sublayer.units)


def _linear_price(cost: float, units: int) -> Tensor:
    return cost * torch.arange(units + 1, dtype=torch.float64)


FLOPS = Budget(
    "flops",
    lambda sublayer, length: _linear_price(flops_per_unit(sublayer, length), sublayer.units),
)
PARAMETERS = Budget(
    "parameters",
    lambda sublayer, length: _linear_price(parameters_per_unit(sublayer), sublayer.units),
)
BUDGETS = {budget.name: budget for budget in (FLOPS, PARAMETERS)}


def budget_named(budget: str | NamedBudget) -> Budget:
    """A budget by its name, or the budget itself."""
    if isinstance(budget, Budget):
        return budget
    if not isinstance(budget, str) or budget not in BUDGETS:
        raise KpruneError(f"unknown budget {budget!r}; use one of {', '.join(BUDGETS)}.")
    return BUDGETS[budget]
