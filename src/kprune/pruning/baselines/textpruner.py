"""TextPruner (Yang et al., ACL 2022, demo): first-order Taylor importance, in equal steps; nothing is refitted.

A unit's importance is |Σ g·m| over a group of 32 examples, summed over groups, where g is the gradient of the loss with
respect to the unit's mask m. The loss is the task's, with labels where they are given; else the dense model's own
prediction is the label.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from kprune.models.resize import shrink
from kprune.models.sublayer import find
from kprune.pruning.baselines.one_shot import OneShot, select_single_units
from kprune.pruning.baselines.task_gradients import task_gradients


class TextPruner(OneShot):
    """Needs labels if a model's own prediction is no label (regression, embeddings)."""

    name = "textpruner"
    wants_labels = True
    settings: ClassVar[dict[str, Any]] = {"iterations": 16}

    def masks(self) -> list[Tensor]:
        run, steps = self.run, int(self.config.iterations or 1)
        masks = [torch.ones(sublayer.units, dtype=torch.bool) for sublayer in run.sublayers]
        for step in range(1, steps + 1):
            if not any(bool(keep.any()) for keep in masks):
                break
            budget = run.dense + (run.remaining - run.dense) * step / steps
            importance = self._importance(masks)
            scores = [
                torch.full(keep.shape, -1.0, dtype=torch.float64).masked_scatter(keep, values / cost)
                for keep, values, cost in zip(masks, importance, run.costs, strict=True)
            ]
            kept = select_single_units(scores, run.prices, budget)
            masks = [before & now for before, now in zip(masks, kept, strict=True)]
        return masks

    def _importance(self, masks: Sequence[Tensor]) -> list[Tensor]:
        """Importance of the remaining units of each sublayer, measured in a model that has only these."""
        model = copy.deepcopy(self.run.student)
        sublayers = [sublayer for sublayer in find(model) if sublayer.units]
        for sublayer, keep in zip(sublayers, masks, strict=True):
            shrink(sublayer, keep)
        present = [sublayer for sublayer in sublayers if sublayer.units]
        sums = iter(task_gradients(model, present, self.run.shared)[1])
        none = torch.zeros(0, dtype=torch.float64)
        return [next(sums).abs().sum(0) if sublayer.units else none for sublayer in sublayers]
