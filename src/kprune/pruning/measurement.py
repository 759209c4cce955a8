"""One measurement: the knowledge of every unit of some sublayers on the sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.config import PruneConfig
from kprune.errors import KpruneError
from kprune.models.batches import Batch
from kprune.models.outputs import next_token_rows
from kprune.models.passes import forward_and_top, forward_to_top, has_partial_head, head_at
from kprune.models.sublayer import Sublayer
from kprune.pruning.criteria import Accumulation, Criterion, not_finite
from kprune.pruning.memory_policy import trim_after_batch
from kprune.pruning.teacher import TeacherPredictions
from kprune.runtime.distributed import all_reduce_sum, shard
from kprune.runtime.memory import guard_memory, trim_heap

LOGITS = 2**22
"""Logits that a language model's head computes at once; about ten tensors of this size exist at a time."""


@dataclass(frozen=True)
class Start:
    """Where a pass starts: a layer or its FFN, and the stream there."""

    index: int
    stream: Tensor
    at_ffn: bool


@dataclass(frozen=True)
class Measured:
    """What is known of one sublayer's units."""

    scores: Tensor
    """Importance per cost, Z = μ (K_pred + λ K_rep) / F (Equation 9); (units,)."""
    token_weights: list[Tensor] | None = None
    """Weights of the real tokens in the refit, per batch; None: all tokens count the same."""


def measure(
    student: PreTrainedModel,
    sublayers: Sequence[Sublayer],
    costs: Sequence[float],
    streams: Mapping[int, Tensor],
    predictions: TeacherPredictions,
    criterion: Criterion,
    config: PruneConfig,
    *,
    is_teacher: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> list[Measured]:
    """The knowledge of every unit in `sublayers`.

    `streams` are the student's at the lowest of them, a tensor per batch; `tick` is called after each batch. While the
    student still equals the teacher (`is_teacher`), the teacher's predictions are recorded from the same pass.
    """
    sample, kind, lowest = predictions.sample, predictions.kind, sublayers[0]
    sums = criterion.start(sublayers, sample, kind, config)
    with guard_memory():
        for number in range(len(sample.batches)):
            with torch.enable_grad(), predictions.saving(sublayers), sums.collect(number):
                start = Start(lowest.index, streams[number], lowest.kind == "ffn")
                backpropagate(student, number, start, predictions, criterion, config, is_teacher=is_teacher)
            trim_after_batch(number, leaves_tensors=criterion.leaves_tensors or is_teacher)
            tick()
    if criterion.leaves_tensors:
        trim_heap()  # the scores need the memory that the passes freed
    sums.all_reduce()
    scores = _scores(sums, sublayers, costs, config)
    if criterion.leaves_tensors:
        trim_heap()
    return [Measured(values, sums.token_weights(sublayer)) for values, sublayer in zip(scores, sublayers, strict=True)]


def backpropagate(
    student: PreTrainedModel,
    number: int,
    start: Start,
    predictions: TeacherPredictions,
    criterion: Criterion,
    config: PruneConfig,
    *,
    is_teacher: bool,
) -> None:
    """Run one batch from a sublayer up, and backpropagate the criterion's objective to it."""
    kind, batch = predictions.kind, predictions.sample.batches[number]
    if kind.is_vocabulary and has_partial_head(student):
        top = forward_to_top(student, batch, start=start.index, stream=start.stream, at_ffn=start.at_ffn)
        leaf = top.detach().requires_grad_()
        if is_teacher:
            predictions.record_top(number, top.detach())
        for positions in position_chunks(batch, student.config.vocab_size):
            student_part = next_token_rows(head_at(student, batch, leaf, positions), batch, positions)
            teacher_part = student_part.detach() if is_teacher else predictions.part(number, positions)
            criterion.objective(kind, student_part, teacher_part, config, batch.labels).backward()
        top.backward(leaf.grad)
        return
    outputs, top = forward_and_top(student, batch, start=start.index, stream=start.stream, at_ffn=start.at_ffn)
    teacher = predictions.record(number, outputs, top) if is_teacher else predictions[number]
    criterion.objective(kind, kind.read(outputs, batch), teacher, config, batch.labels).backward()


def position_chunks(batch: Batch, vocabulary: int) -> tuple[Tensor, ...]:
    """All positions, in parts whose logits fit into memory."""
    examples, length = batch.mask.shape
    most = max(1, LOGITS // (vocabulary * examples))
    chunks: tuple[Tensor, ...] = torch.arange(length, device=batch.mask.device).split(most)
    return chunks


def _scores(
    sums: Accumulation, sublayers: Sequence[Sublayer], costs: Sequence[float], config: PruneConfig
) -> list[Tensor]:
    """Scores of every sublayer's units; each process computes those of some sublayers, wide and narrow ones."""
    own = set(shard(sorted(sublayers, key=lambda sublayer: sublayer.features)))
    scores = [
        _score(sums, sublayer, cost, config)
        if sublayer in own
        else torch.zeros(sublayer.units, dtype=torch.float64, device=sublayer.consumer.weight.device)
        for sublayer, cost in zip(sublayers, costs, strict=True)
    ]
    all_reduce_sum(scores)
    return scores


def _score(sums: Accumulation, sublayer: Sublayer, cost: float, config: PruneConfig) -> Tensor:
    """Z = μ K / F (Equation 9); μ is 1 for neurons."""
    unit_weight = (config.head_weight or 0.0) if sublayer.kind == "attention" else 1.0
    scores = unit_weight * sums.knowledge(sublayer) / cost
    if not bool(scores.isfinite().all()):
        raise not_finite(sublayer)
    return scores


def require_knowledge(measured: Sequence[Measured], config: PruneConfig) -> None:
    """Raise if every unit has a score of zero."""
    if not any(bool(each.scores.any()) for each in measured):
        raise KpruneError(
            f"criterion {config.criterion!r} with rep_weight {config.rep_weight:g} finds no knowledge in any unit: its "
            "gradient vanishes while nothing is removed; use a rep_weight above 0, or the criterion 'compensated'."
        )
