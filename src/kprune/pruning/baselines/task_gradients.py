"""Gradients of the task's loss with respect to unit masks, over the sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.models.hooks import on_feature_grad
from kprune.models.passes import forward
from kprune.models.sublayer import Sublayer
from kprune.pruning.criteria import task_loss
from kprune.pruning.run import Shared
from kprune.runtime.distributed import all_reduce_sum
from kprune.runtime.memory import guard_memory

GROUP = 32
"""Examples whose gradients form one entry of a unit's gradient vector: the batch size of Kwon's code."""


def task_gradients(
    model: PreTrainedModel, sublayers: Sequence[Sublayer], shared: Shared
) -> tuple[list[Tensor], list[Tensor]]:
    """Σ g² over examples, (units,), and Σ g over groups of examples, (groups, units), for each of a model's sublayers.

    g is the gradient of the task's loss with respect to a unit's mask.
    """
    sample, predictions = shared.sample, shared.predictions
    groups = -(-sample.examples // GROUP)
    device = sublayers[0].consumer.weight.device
    squares = {s: torch.zeros(s.units, dtype=torch.float64, device=device) for s in sublayers}
    sums = {s: torch.zeros(groups, s.units, dtype=torch.float64, device=device) for s in sublayers}
    with guard_memory():
        for number, batch in enumerate(sample.batches):

            def add(sublayer: Sublayer, features: Tensor, gradient: Tensor, example: Tensor = batch.example) -> None:
                by_unit = (features * gradient).sum(1).unflatten(1, (-1, sublayer.width)).sum(2).double()
                squares[sublayer] += by_unit.square().sum(0)
                sums[sublayer].index_add_(0, example // GROUP, by_unit)

            with torch.enable_grad(), on_feature_grad(sublayers, add, batch.mask.shape):
                student = predictions.kind.read(forward(model, batch), batch)
                task_loss(predictions.kind, student, predictions[number], batch.labels).sum().backward()
    all_reduce_sum([*squares.values(), *sums.values()])
    return [squares[s].cpu() for s in sublayers], [sums[s].cpu() for s in sublayers]
