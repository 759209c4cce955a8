"""One run of a pruner: the student, the prices of its units and what is left of the budget."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.config import PruneConfig
from kprune.errors import KpruneError
from kprune.models.batches import Sample
from kprune.models.native import unit_limits
from kprune.models.resize import add_bias
from kprune.models.sublayer import Sublayer, find
from kprune.pruning.budgets import Budget, total_flops
from kprune.pruning.measurement import Measured
from kprune.pruning.native_shape import NativeSearch, NativeShape
from kprune.pruning.teacher import TeacherPredictions
from kprune.runtime.tensor_store import TensorStore


@dataclass
class Shared:
    """What all runs of a pruner share."""

    teacher: PreTrainedModel
    sample: Sample
    predictions: TeacherPredictions
    first: list[Measured] | None = None
    """The first measurement, made while nothing is removed: it serves every reduction."""
    gradients: tuple[list[Tensor], list[Tensor]] | None = None
    """Task gradients of the dense model's masks, for the method that reads no others: they serve every reduction."""
    targets: TensorStore | None = None
    """The teacher's streams after every sublayer, if they are kept for further runs."""


class Run:
    """The student and its remaining budget."""

    def __init__(self, shared: Shared, config: PruneConfig, budget: Budget) -> None:
        self.shared, self.config = shared, config
        self.student: PreTrainedModel = copy.deepcopy(shared.teacher).requires_grad_(False)
        self.sublayers = [sublayer for sublayer in find(self.student) if sublayer.units]
        if config.bias:
            for sublayer in self.sublayers:
                add_bias(sublayer)
        length = shared.sample.mean_length
        self.prices = prices_of(self.sublayers, budget, length)
        """Cost of 0, 1, 2, … units of each sublayer."""
        self.dense = sum(float(price[-1]) for price in self.prices)
        self.dense_flops = total_flops(self.sublayers, length)
        self.remaining = allowance(self.dense, self.prices, group_sizes(self.sublayers, config), config)
        """What may still be spent on the sublayers that are not finished."""
        self.native: NativeShape | None = None
        """What every layer of a native model keeps, once the search has chosen it."""
        self.native_search: NativeSearch | None = None
        if config.native:
            self.native_search = NativeSearch.within(unit_limits(self.student), self.sublayers, self.prices, config)
            self.native_search.require_affordable(self.remaining, self.dense, config)

    @property
    def costs(self) -> list[float]:
        """Mean cost of one unit of each sublayer."""
        return [float(price[-1]) / (len(price) - 1) for price in self.prices]

    def all_fit(self, step: int) -> bool:
        """Whether all units of the sublayers from `step` on fit the remaining budget, up to rounding."""
        return sum(float(price[-1]) for price in self.prices[step:]) <= self.remaining + 1e-9 * self.dense

    def spend(self, step: int, units: int) -> None:
        """Subtract the cost of a sublayer's kept units."""
        self.remaining -= float(self.prices[step][units])


def prices_of(sublayers: Sequence[Sublayer], budget: Budget, length: float) -> list[Tensor]:
    """Cost of 0, 1, 2, … units of each sublayer that has units, for inputs of a mean length."""
    return [budget.price(sublayer, length) for sublayer in sublayers if sublayer.units]


def group_sizes(sublayers: Sequence[Sublayer], config: PruneConfig) -> list[int]:
    """How many units of each sublayer stay or go together: `align` neurons, a single head."""
    return [min(config.align, sublayer.units) if sublayer.kind == "ffn" else 1 for sublayer in sublayers]


def allowance(dense: float, prices: Sequence[Tensor], sizes: Sequence[int], config: PruneConfig) -> float:
    """What may be spent in all; raise if that is less than the cheapest group of units."""
    if not prices:
        raise KpruneError("the model has no heads and no neurons left to prune; start from a larger model.")
    allowed = (1.0 - config.reduction) * dense
    least = min(float(price[size]) for price, size in zip(prices, sizes, strict=True))
    if allowed < least:
        reachable = math.floor(1e6 * (1.0 - least / dense)) / 1e6
        raise KpruneError(
            f"reduction {config.reduction} would leave no unit at all; the largest possible reduction is "
            f"{reachable:.6f} with neurons in groups of {config.align} (align)."
        )
    return allowed


def mask_of(kept: Sequence[int], units: int) -> Tensor:
    """Boolean mask over units, true at the given numbers."""
    keep = torch.zeros(units, dtype=torch.bool)
    keep[list(kept)] = True
    return keep
