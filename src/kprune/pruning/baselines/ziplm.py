"""ZipLM without training (Kurtić et al., NeurIPS 2023): a local surgeon, and a knapsack over sizes.

In every sublayer the optimal brain surgeon removes units by what they cost its own dense output, on the dense model's
features, and updates the remaining weights. A knapsack then takes one size of each sublayer within the budget, which
may be of measured milliseconds. A coefficient per sublayer weighs its errors: vectors of coefficients are drawn, the
best is mutated, and the one whose model predicts most like the dense model on a part of the sample is kept.

Neurons are removed `align` at a time; with `align` 1 one by one, as in the paper, which takes longer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.maths.brain_surgeon import removal_path
from kprune.maths.knapsack import best_sizes
from kprune.maths.least_squares import reconstructing_weights
from kprune.models.resize import shrink
from kprune.models.sublayer import Sublayer, find
from kprune.pruning.baselines.one_shot import OneShot
from kprune.pruning.baselines.reconstruction import Reconstruction
from kprune.pruning.criteria import not_finite
from kprune.pruning.likeness import loss_against_teacher
from kprune.pruning.refit import solving
from kprune.pruning.run import group_sizes, mask_of

DRAWN, MUTATED = 10, 10
"""Vectors of coefficients that are drawn, and mutations of the best one; equal coefficients come first."""
MUTATION_SHARE = 0.1
"""Share of coefficients that a mutation draws anew, at least one."""
JUDGED_TOKENS = 8192
"""Tokens of the sample on which a choice of sizes is judged."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that the surgeon reaches in one sublayer, from all units to none."""

    order: Tensor
    """Numbers of the units, the first removed one first."""
    removed: Tensor
    """Units removed at each size."""
    errors: Tensor
    """Relative error of the output at each size."""

    def mask(self, size: int) -> Tensor:
        """Boolean mask of the units that stay at a size."""
        return mask_of(self.order[int(self.removed[size]) :].tolist(), len(self.order))


class ZipLM(Reconstruction):
    """The weights of a size are those that the surgeon's updates lead to; the bias stays."""

    name = "ziplm"
    overrides: ClassVar[dict[str, Any]] = {n: v for n, v in OneShot.overrides.items() if n != "align"} | {"refit": True}
    fits_bias = False

    def masks_by_gram(self, grams: Mapping[Sublayer, Tensor]) -> list[Tensor]:
        run = self.run
        steps = group_sizes(run.sublayers, self.config)
        self._sizes = [self._sizes_of(s, grams[s], step) for s, step in zip(run.sublayers, steps, strict=True)]
        self._prices = [
            price[len(each.order) - each.removed] for each, price in zip(self._sizes, run.prices, strict=True)
        ]
        self._losses: dict[tuple[int, ...], float] = {}
        chosen = search_coefficients(len(run.sublayers), self.config.seed, lambda factors: self._judge(factors, grams))
        return [each.mask(size) for each, size in zip(self._sizes, self._knapsack(chosen), strict=True)]

    def _sizes_of(self, sublayer: Sublayer, gram: Tensor, per_step: int) -> Sizes:
        ridge = self.config.ridge or 0.0
        weight, width = sublayer.consumer.weight, sublayer.width
        try:
            with solving(sublayer, ridge):
                path = removal_path(gram[:-1, :-1], weight, width, per_step=per_step, ridge=ridge)
        except ArithmeticError as error:
            raise not_finite(sublayer) from error
        return Sizes(*(part.cpu() for part in path))

    def _knapsack(self, factors: Tensor) -> tuple[int, ...]:
        errors = [factor * each.errors for factor, each in zip(factors.tolist(), self._sizes, strict=True)]
        return tuple(best_sizes(errors, self._prices, self.run.remaining))

    def _judge(self, factors: Tensor, grams: Mapping[Sublayer, Tensor]) -> float:
        """The loss against the dense model, on a part of the sample, of the sizes that some coefficients lead to."""
        sizes = self._knapsack(factors)
        if sizes not in self._losses:
            model = self._model(sizes, grams)
            config = replace(self.config, temperature=1.0)
            self._losses[sizes] = loss_against_teacher(model, self.run.shared.predictions, config, JUDGED_TOKENS)
        return self._losses[sizes]

    @torch.no_grad()
    def _model(self, sizes: Sequence[int], grams: Mapping[Sublayer, Tensor]) -> PreTrainedModel:
        """A copy of the student with these sizes."""
        model: PreTrainedModel = copy.deepcopy(self.run.student)
        sublayers = [sublayer for sublayer in find(model) if sublayer.units]
        for dense, sublayer, each, size in zip(self.run.sublayers, sublayers, self._sizes, sizes, strict=True):
            keep, ridge = each.mask(size), self.config.ridge or 0.0
            columns = keep.repeat_interleave(dense.width).to(dense.consumer.weight.device)
            with solving(dense, ridge):
                weights = reconstructing_weights(grams[dense], dense.consumer.weight, columns, ridge, bias=False)
            shrink(sublayer, keep)
            sublayer.consumer.weight.copy_(weights[:-1].T)
        return model


def search_coefficients(count: int, seed: int, judge: Callable[[Tensor], float]) -> Tensor:
    """The coefficients with the least loss by `judge`: equal ones, drawn ones, and mutations of the best; (count,)."""
    generator = torch.Generator().manual_seed(seed)
    best = torch.ones(count, dtype=torch.float64)
    least = judge(best)
    mutated = max(1, round(MUTATION_SHARE * count))
    for trial in range(DRAWN + MUTATED):
        drawn = torch.rand(count, generator=generator, dtype=torch.float64)
        if trial >= DRAWN:
            chosen = torch.randperm(count, generator=generator)[:mutated]
            drawn = best.clone().index_copy_(0, chosen, drawn[chosen])
        loss = judge(drawn)
        if loss < least:
            best, least = drawn, loss
    return best
