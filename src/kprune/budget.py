"""What a reduction is a reduction of: FLOPs, parameters, or anything else that has a price per number of units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kprune.cost import unit_flops
from kprune.errors import KpruneError
from kprune.sublayer import Sublayer


@dataclass(frozen=True)
class Budget:
    """What is spent on units."""

    name: str
    price: Callable[[Sublayer, float], Tensor]
    """What 0, 1, 2, … units of a sublayer cost together on an input of so many tokens; (units + 1,), never falling."""


def flops_per_unit(sublayer: Sublayer, length: float) -> float:
    """FLOPs of one unit of a sublayer on one input of `length` tokens, a whole number: sums of them are then exact."""
    attended = sublayer.width if sublayer.kind == "attention" else 0
    return float(round(unit_flops(sublayer.weights_per_unit, length, attended)))


def total_flops(sublayers: Sequence[Sublayer], length: float) -> float:
    """FLOPs of all units that sublayers have now, on one input of `length` tokens."""
    return sum(flops_per_unit(sublayer, length) * sublayer.units for sublayer in sublayers if sublayer.units)


def parameters_per_unit(sublayer: Sublayer) -> float:
    """Weights and biases that go with one unit of a sublayer."""
    biases = sum(linear.bias.numel() for linear in sublayer.producers if linear.bias is not None)
    return float(sublayer.weights_per_unit + biases // sublayer.units)


def _each(cost: float, units: int) -> Tensor:
    return cost * torch.arange(units + 1, dtype=torch.float64)


FLOPS = Budget("flops", lambda sublayer, length: _each(flops_per_unit(sublayer, length), sublayer.units))
PARAMETERS = Budget("parameters", lambda sublayer, length: _each(parameters_per_unit(sublayer), sublayer.units))
BUDGETS = {budget.name: budget for budget in (FLOPS, PARAMETERS)}


def budget_named(budget: str | Budget) -> Budget:
    """A budget by its name, or itself."""
    if isinstance(budget, Budget):
        return budget
    if budget not in BUDGETS:
        raise KpruneError(f"budget {budget!r} is not known; use one of {', '.join(BUDGETS)}.")
    return BUDGETS[budget]
