"""The loss of healing: how far outputs and hidden states are from the teacher's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.healing.targets import Target, Targets
from kprune.maths.losses import divergence, squared_error
from kprune.models.batches import Batch
from kprune.models.outputs import OutputKind, Prediction, next_token_rows
from kprune.models.passes import call, forward_to_top, forward_with_streams, has_partial_head, head_at
from kprune.pruning.measurement import position_chunks


@dataclass(frozen=True)
class Size:
    """Examples and real tokens of a step, over all processes: losses are means over them."""

    examples: int
    tokens: int


def output_loss(kind: OutputKind, student: Prediction, teacher: Prediction) -> Tensor:
    """Σ w KL(teacher ‖ student) over rows, or Σ w ‖z_T − z_S‖² for values; the weights of an example sum to 1."""
    if kind.is_distribution:
        return divergence(student.values, teacher.values, student.weights, 1.0).sum()
    return squared_error(student.values, teacher.values, student.weights).sum()


def hidden_loss(batch: Batch, streams: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    """Σ ‖T − S‖² / ‖T‖² over real tokens, averaged over layers.

    Each token's error is relative to its own norm: decoders have tokens whose norm is a hundred times that of others.
    """
    errors = []
    for stream, kept in zip(streams, targets, strict=True):
        target = kept.to(stream.dtype)
        squares = target.square().sum(-1)
        errors.append(((batch.real(stream) - target).square().sum(-1) / squares.clamp(min=1e-12)).sum())
    return torch.stack(errors).mean()


def backpropagate(
    student: PreTrainedModel, batch: Batch, target: Target, targets: Targets, size: Size, hidden_weight: float
) -> None:
    """Add the gradient of (outputs' loss) / examples + weight × (hidden states' loss) / tokens."""
    kind = targets.kind
    is_partial = kind.is_vocabulary and has_partial_head(student)
    outputs, streams = forward_with_streams(student, batch, with_head=not is_partial)
    losses: list[Tensor] = []
    gradients: list[Tensor | None] = []
    if is_partial:
        losses, gradients = [streams[-1]], [_head_gradient(student, batch, streams[-1], target, targets, size)]
    else:
        rows = kind.read(outputs, batch)
        losses, gradients = [output_loss(kind, rows, targets.prediction(target, batch)) / size.examples], [None]
    if target.streams and hidden_weight:
        losses.append(hidden_weight * hidden_loss(batch, streams, target.streams) / size.tokens)
        gradients.append(None)
    torch.autograd.backward(losses, gradients)


def _head_gradient(
    student: PreTrainedModel, batch: Batch, top: Tensor, target: Target, targets: Targets, size: Size
) -> Tensor:
    """The gradient at a causal model's last stream; logits of a few positions exist at a time."""
    leaf = top.detach().requires_grad_()
    for positions in position_chunks(batch, student.config.vocab_size):
        rows = next_token_rows(head_at(student, batch, leaf, positions), batch, positions)
        (output_loss(targets.kind, rows, targets.part(target, batch, positions)) / size.examples).backward()
    assert leaf.grad is not None
    return leaf.grad


@torch.no_grad()
def held_out_loss(student: PreTrainedModel, batch: Batch, target: Target, targets: Targets) -> Tensor:
    """The outputs' loss of a batch, summed over its examples."""
    kind = targets.kind
    if not (kind.is_vocabulary and has_partial_head(student)):
        rows = kind.read(call(student, batch), batch)
        return output_loss(kind, rows, targets.prediction(target, batch)).double()
    top = forward_to_top(student, batch)
    total = torch.zeros((), dtype=torch.float64, device=top.device)
    for positions in position_chunks(batch, student.config.vocab_size):
        rows = next_token_rows(head_at(student, batch, top, positions), batch, positions)
        total += output_loss(kind, rows, targets.part(target, batch, positions))
    return total
