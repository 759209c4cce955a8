"""Moments of features over the sample, from one pass of the student: means, mean squares, or whole Gram matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kprune.maths.gram import Gram, column_sums, scales
from kprune.models.hooks import on_features
from kprune.models.passes import advance, embed
from kprune.models.sublayer import Sublayer
from kprune.pruning.run import Run
from kprune.runtime.distributed import all_reduce_sum
from kprune.runtime.memory import guard_memory


@dataclass(frozen=True)
class Moments:
    """Moments of a sublayer's features over real tokens, (features,), in float64 on the CPU."""

    mean: Tensor
    square: Tensor
    """Mean square."""

    @property
    def variance(self) -> Tensor:
        return (self.square - self.mean.square()).clamp(min=0.0)


def feature_moments(run: Run, sublayers: Sequence[Sublayer]) -> list[Moments]:
    """Moments of the features of each sublayer."""
    sums = {s: s.consumer.weight.new_zeros(2, s.features, dtype=torch.float64) for s in sublayers}

    def add(sublayer: Sublayer, rows: Tensor) -> None:
        sums[sublayer][0] += column_sums(rows)
        sums[sublayer][1] += column_sums(rows.square())

    _read_features(run, sublayers, add)
    all_reduce_sum(sums.values())
    return [Moments(*(sums[sublayer] / run.shared.sample.tokens).cpu()) for sublayer in sublayers]


def feature_grams(run: Run, sublayers: Sequence[Sublayer]) -> list[Tensor]:
    """Mean of f fᵀ over real tokens of each sublayer, (features + 1)²; the last feature is 1, for the bias."""
    sums = {s: Gram(s.features + 1, s.consumer.weight.device) for s in sublayers}

    def add(sublayer: Sublayer, rows: Tensor) -> None:
        wide = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
        sums[sublayer].add(wide, scales(wide, last=1))

    _read_features(run, sublayers, add)
    all_reduce_sum([gram.sums for gram in sums.values()])
    return [sums.pop(sublayer).matrix / run.shared.sample.tokens for sublayer in sublayers]


@torch.no_grad()
def _read_features(run: Run, sublayers: Sequence[Sublayer], add: Callable[[Sublayer, Tensor], None]) -> None:
    """Call `add` with the features of each batch at real tokens, (tokens, features), in float64.

    Passes end before the model's head.
    """
    with guard_memory():
        for batch in run.shared.sample.batches:

            def read(sublayer: Sublayer, features: Tensor) -> None:
                add(sublayer, batch.real(features).double())  # noqa: B023  # called within this iteration

            with on_features(sublayers, read, batch.mask.shape):
                stream = embed(run.student, batch)
                for index in range(run.student.config.num_hidden_layers):
                    stream = advance(run.student, batch, index, stream)
