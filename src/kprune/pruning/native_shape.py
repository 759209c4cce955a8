"""The search for a native model: one number of heads and one of neurons, for all layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from kprune.config import PruneConfig
from kprune.errors import KpruneError
from kprune.maths.selection import best_pair, kept_by_count, select_groups
from kprune.models.sublayer import Sublayer

KINDS = ("attention", "ffn")


@dataclass(frozen=True)
class NativeShape:
    """What every layer keeps, and what it costs that all layers keep the same."""

    heads: int
    """Units of attention in each layer: heads, or key/value heads with their query heads."""
    neurons: int
    lost: float
    """Share of the knowledge that is lost before the refit."""
    lost_freely: float
    """The same for the free search within the same budget."""

    def units_of(self, kind: str) -> int:
        return self.heads if kind == "attention" else self.neurons

    def describe(self) -> str:
        """One sentence with the shape, and what the constraint costs."""
        return (
            f"Every layer keeps {self.heads} heads and {self.neurons} neurons. By the first measurement, this loses "
            f"{100 * self.lost:.2g} % of the knowledge; with other numbers in every layer, "
            f"{100 * self.lost_freely:.2g} %."
        )

    def as_json(self) -> dict[str, Any]:
        return {name: float(f"{value:.4g}") for name, value in asdict(self).items()} | {
            "heads": self.heads,
            "neurons": self.neurons,
        }


@dataclass(frozen=True)
class NativeSearch:
    """The shapes that a native model may have, with what they cost."""

    sublayers: Sequence[Sublayer]
    prices: Sequence[Tensor]
    """Cost of 0, 1, 2, … units of each sublayer."""
    counts: tuple[Tensor, Tensor]
    """The numbers of heads and of neurons from which the search chooses."""

    @classmethod
    def within(
        cls,
        limits: dict[str, tuple[int, int]],
        sublayers: Sequence[Sublayer],
        prices: Sequence[Tensor],
        config: PruneConfig,
    ) -> NativeSearch:
        """A search within limits of units per layer; neurons are multiples of `align`, or all."""
        heads, neurons = (limits[kind] for kind in KINDS)
        widths = sorted({*range(config.align, neurons[1], config.align), neurons[1]})
        return cls(sublayers, prices, (torch.arange(heads[0], heads[1] + 1), torch.tensor(widths)))

    @property
    def allows_all(self) -> bool:
        """Whether a native model may keep all units."""
        most = {kind: int(counts[-1]) for kind, counts in zip(KINDS, self.counts, strict=True)}
        return all(sublayer.units == most[sublayer.kind] for sublayer in self.sublayers)

    def require_affordable(self, budget: float, dense: float, config: PruneConfig) -> None:
        """Raise if the smallest shape costs more than the budget."""
        if self.least > budget:
            reachable = math.floor(1e6 * (1.0 - self.least / dense)) / 1e6
            raise KpruneError(
                f"reduction {config.reduction} would leave too little for {int(self.counts[0][0])} heads and "
                f"{int(self.counts[1][0])} neurons in every layer; the largest possible reduction of a native model is "
                f"{reachable:.6f}."
            )

    @property
    def costs(self) -> tuple[Tensor, Tensor]:
        """Cost of each count in all layers together."""
        attention, ffn = (self._of_kind(kind, self.prices) for kind in KINDS)
        return sum_at(attention, self.counts[0]), sum_at(ffn, self.counts[1])

    @property
    def least(self) -> float:
        """Cost of the smallest shape."""
        return sum(float(costs[0]) for costs in self.costs)

    def best(self, knowledge: Sequence[Tensor], sizes: Sequence[int], budget: float) -> NativeShape:
        """The shape that keeps the most knowledge; each sublayer keeps its own best units."""
        knowledge = [values.cpu().double() for values in knowledge]
        kept = tuple(
            kept_by_count(self._of_kind(kind, knowledge), counts)
            for kind, counts in zip(KINDS, self.counts, strict=True)
        )
        pair = best_pair((kept[0], kept[1]), self.costs, budget)
        assert pair is not None  # `require_affordable` was called
        total = float(sum(values.sum() for values in knowledge))
        per_cost = [values * (len(price) - 1) / price[-1] for values, price in zip(knowledge, self.prices, strict=True)]
        free = select_groups(per_cost, list(self.prices), list(sizes), budget)
        kept_freely = float(sum(values[mask].sum() for values, mask in zip(knowledge, free, strict=True)))
        return NativeShape(
            heads=int(self.counts[0][pair[0]]),
            neurons=int(self.counts[1][pair[1]]),
            lost=1.0 - float(kept[0][pair[0]] + kept[1][pair[1]]) / total,
            lost_freely=1.0 - kept_freely / total,
        )

    def _of_kind(self, kind: str, values: Sequence[Tensor]) -> list[Tensor]:
        return [value for value, sublayer in zip(values, self.sublayers, strict=True) if sublayer.kind == kind]


def sum_at(prices: Sequence[Tensor], counts: Tensor) -> Tensor:
    """The cost of each count of units in all sublayers together."""
    return torch.stack([price[counts] for price in prices]).sum(0)
