"""TextPruner (Yang et al., ACL 2022, demo): first-order Taylor importance, in equal steps; nothing is refitted.

A unit's importance is |Σ g·m| over a group of 32 examples, summed over groups, where g is the gradient of the loss with
respect to the unit's mask m. The loss is the task's, with labels where they are given; else the dense model's own
prediction is the label. Heads and neurons are ranked apart; the same share of the cost of each stays.
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
            scores = [
                torch.full(keep.shape, -1.0, dtype=torch.float64).masked_scatter(keep, values)
                for keep, values in zip(masks, self._importance(masks), strict=True)
            ]
            masks = [before & now for before, now in zip(masks, self._selected(scores, budget), strict=True)]
        return masks

    def _selected(self, scores: Sequence[Tensor], budget: float) -> list[Tensor]:
        """Masks of the best heads, within their share of the budget, and of the best neurons, within what is left."""
        run, masks, left = self.run, [torch.zeros(0)] * len(scores), budget
        for kind in ("attention", "ffn"):
            places = [place for place, sublayer in enumerate(run.sublayers) if sublayer.kind == kind]
            prices = [run.prices[place] for place in places]
            share = sum(float(price[-1]) for price in prices) / run.dense
            allowed = budget * share if kind == "attention" else left
            kept = select_single_units([scores[place] for place in places], prices, allowed) if places else []
            for place, price, keep in zip(places, prices, kept, strict=True):
                masks[place] = keep
                left -= float(price[int(keep.sum())])
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
