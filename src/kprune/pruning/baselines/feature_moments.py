"""Mean and mean square of features over the sample, from one pass of the student."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kprune.maths.gram import column_sums
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


@torch.no_grad()
def feature_moments(run: Run, sublayers: Sequence[Sublayer]) -> list[Moments]:
    """Moments of the features of each sublayer; the pass ends before the model's head."""
    layers = run.student.config.num_hidden_layers
    sums = {s: s.consumer.weight.new_zeros(2, s.features, dtype=torch.float64) for s in sublayers}
    with guard_memory():
        for batch in run.shared.sample.batches:

            def add(sublayer: Sublayer, features: Tensor) -> None:
                rows = batch.real(features).double()  # noqa: B023  # called within this iteration
                sums[sublayer][0] += column_sums(rows)
                sums[sublayer][1] += column_sums(rows.square_())

            with on_features(sublayers, add, batch.mask.shape):
                stream = embed(run.student, batch)
                for index in range(layers):
                    stream = advance(run.student, batch, index, stream)
    all_reduce_sum(sums.values())
    return [Moments(*(sums[sublayer] / run.shared.sample.tokens).cpu()) for sublayer in sublayers]
