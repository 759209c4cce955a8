"""Wanda-sp: Wanda (Sun et al. 2024) for whole units, as An et al. 2024 compare with it.

Units with the largest weights times activations stay, the same share in every sublayer of a kind; nothing is refitted.
"""

from __future__ import annotations

from torch import Tensor

from kprune.maths.selection import best_share, even_shares
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
