"""Random pruning: units that stay are drawn by seed; nothing is refitted."""

from __future__ import annotations

import torch
from torch import Tensor

from kprune.pruning.baselines.one_shot import OneShot, select_single_units


class RandomUnits(OneShot):
    """Units drawn at random."""

    name = "random"

    def masks(self) -> list[Tensor]:
        run = self.run
        generator = torch.Generator().manual_seed(self.config.seed)
        scores = [torch.rand(sublayer.units, generator=generator, dtype=torch.float64) for sublayer in run.sublayers]
        return select_single_units(scores, run.prices, run.remaining)
