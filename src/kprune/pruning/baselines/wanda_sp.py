"""Wanda-sp: Wanda (Sun et al. 2024) for whole units, as An et al. 2024 compare with it.

Units with the largest weights times activations stay, the same share in every sublayer of a kind; nothing is refitted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from torch import Tensor

from kprune.maths.selection import best_share
from kprune.models.sublayer import Sublayer
from kprune.pruning.baselines.feature_moments import Moments, feature_moments
from kprune.pruning.baselines.one_shot import OneShot


class WandaSP(OneShot):
    """Units by Σ |W| · ‖f‖ over their columns."""

    name = "wanda-sp"

    def masks(self) -> list[Tensor]:
        run = self.run
        moments = feature_moments(run, run.sublayers)
        scores = [weighted_activations(*each) for each in zip(run.sublayers, moments, strict=True)]
        is_head = [sublayer.kind == "attention" for sublayer in run.sublayers]
        heads, neurons = even_shares(run.prices, is_head, run.remaining)
        shares = [heads if head else neurons for head in is_head]
        return [best_share(*each) for each in zip(scores, shares, strict=True)]


def weighted_activations(sublayer: Sublayer, moments: Moments) -> Tensor:
    """Score of every unit, (units,): the column sums of |W| times the root mean square of the features."""
    columns = sublayer.consumer.weight.double().abs().sum(0).cpu() * moments.square.sqrt()
    return columns.view(sublayer.units, -1).sum(1)


def even_shares(prices: Sequence[Tensor], is_head: Sequence[bool], budget: float) -> tuple[float, float]:
    """The shares of heads and of neurons to keep in every sublayer.

    A sublayer has few heads, so the two shares can hardly be equal within a budget. For each share of heads, neurons
    take what is left of the budget; the pair of shares that differ least is chosen.
    """
    head_shares, neuron_shares = (
        _shares([p for p, head in zip(prices, is_head, strict=True) if head == kind]) for kind in (True, False)
    )

    def cost(heads: float, neurons: float) -> float:
        shares = [heads if head else neurons for head in is_head]
        return sum(float(p[_count(share, len(p) - 1)]) for p, share in zip(prices, shares, strict=True))

    best = (0.0, 0.0)
    least = float("inf")
    for heads in head_shares:
        fitting = bisect_right(neuron_shares, budget, key=lambda neurons: cost(heads, neurons))
        if fitting and abs(heads - neuron_shares[fitting - 1]) <= least:
            best = heads, neuron_shares[fitting - 1]
            least = abs(best[0] - best[1])
    return best


def _shares(prices: Sequence[Tensor]) -> list[float]:
    """The shares that a kind's sublayers can keep, ascending; 1 if there are no such sublayers."""
    units = {len(price) - 1 for price in prices}
    return sorted({kept / count for count in units for kept in range(count + 1)}) or [1.0]


def _count(share: float, units: int) -> int:
    """Units that `best_share` keeps."""
    return int(share * units + 1e-9)
