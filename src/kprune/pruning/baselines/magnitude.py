"""Magnitude pruning: the units with the largest weights per cost stay; nothing is refitted."""

from __future__ import annotations

from torch import Tensor

from kprune.models.sublayer import Sublayer
from kprune.pruning.baselines.one_shot import OneShot, select_single_units


class Magnitude(OneShot):
    """Units by the squared norm of their weights."""

    name = "magnitude"

    def masks(self) -> list[Tensor]:
        run = self.run
        scores = [squared_norms(sublayer) / cost for sublayer, cost in zip(run.sublayers, run.costs, strict=True)]
        return select_single_units(scores, run.prices, run.remaining)


def squared_norms(sublayer: Sublayer) -> Tensor:
    """Squared norm of every unit's weights, over all projections; (units,)."""
    units = sublayer.units
    norms = sublayer.consumer.weight.double().square().sum(0).view(units, -1).sum(1)
    for producer, stack in zip(sublayer.producers, sublayer.block.producers.values(), strict=True):
        rows = producer.weight.double().square().sum(1)
        for part in sublayer.split(rows, stack):
            norms = norms + part.view(units, -1).sum(1)
    return norms
