"""The student's and the teacher's streams at the current sublayer, and the refit of one to the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.errors import NotFinite
from kprune.maths.least_squares import HalvedLeastSquares, LeastSquares
from kprune.models.batches import Sample
from kprune.models.passes import advance, embed, pass_attention, watch
from kprune.models.resize import shrink
from kprune.models.sublayer import Sublayer
from kprune.pruning.memory_policy import FeatureCache
from kprune.pruning.refit import Fit, require_bounded
from kprune.pruning.teacher import TeacherStreams
from kprune.runtime.distributed import all_reduce_sum, broadcast
from kprune.runtime.memory import guard_memory
from kprune.runtime.tensor_store import TensorStore, open_store


class Streams:
    """The streams of both models at the current sublayer, a tensor per batch; nothing below it is kept."""

    @torch.no_grad()
    def __init__(
        self,
        teacher: PreTrainedModel,
        student: PreTrainedModel,
        sample: Sample,
        *,
        are_equal: bool = True,
        offload: str | Path | None = None,
        targets: TensorStore | None = None,
    ) -> None:
        self._model = student
        self.sample = sample
        self.student: TensorStore = open_store(offload)
        self._teacher = TeacherStreams(teacher, sample, offload, targets)
        with guard_memory():
            for number, batch in enumerate(sample.batches):
                self.student[number] = self._teacher.streams[number] = embed(student, batch)
        self._layer = 0  # of the student
        self._at_ffn = False
        self._features = FeatureCache(has_room=targets is not None and offload is None)
        self.are_equal = are_equal
        """Whether nothing was removed yet, so that both models have the same stream."""

    @torch.no_grad()
    def advance_to(self, target: Sublayer) -> None:
        """Move the student's stream, and the teacher's with it, up to a sublayer."""
        with guard_memory():
            while self._layer < target.index:
                self._pass_layer()
            if target.kind == "ffn" and not self._at_ffn:
                for number, batch in enumerate(self.sample.batches):
                    with self._features.replay(number):
                        self.student[number] = pass_attention(self._model, target, batch, self.student[number])
                self._at_ffn = True
        self._features.trim()

    def _pass_layer(self) -> None:
        index = self._layer
        for number, batch in enumerate(self.sample.batches):
            if self._teacher.layer == index:
                self._teacher.advance(number)
            if self.are_equal:
                self.student[number] = self._teacher.streams[number]
            else:
                with self._features.replay(number):
                    self.student[number] = advance(self._model, batch, index, self.student[number], at_ffn=self._at_ffn)
        self._layer = index + 1
        self._teacher.enter_layer(index + 1)
        self._at_ffn = False

    @torch.no_grad()
    def remove(
        self,
        target: Sublayer,
        keep: Tensor,
        fit: Fit,
        tick: Callable[[], None] = lambda: None,
        token_weights: Sequence[Tensor] | None = None,
        *,
        in_halves: bool = False,
    ) -> tuple[float, float]:
        """Remove the units that `keep` leaves out, and fit the consumer to the teacher's stream (Equations 10, 11).

        Returns ‖T − S‖² / ‖T‖² of the stream after the target, before and after the refit, with `token_weights` (one
        tensor per batch) if given. A target that keeps all units is refitted too, to correct the error below it.
        `in_halves` keeps the sums per half of the examples, for a `fit` that is cross-validated.
        """
        self.are_equal = self.are_equal and bool(keep.all())
        if self.are_equal:
            return 0.0, 0.0
        shrink(target, keep)
        kind = HalvedLeastSquares if in_halves else LeastSquares
        problem = kind(target.features, target.consumer.out_features, target.consumer.weight.device)
        scale = self._fill(problem, target, tick, token_weights)
        weight, bias = target.consumer.weight, target.consumer.bias
        present = torch.cat([weight.T, weight.new_zeros(1, len(weight))]).double()
        fitted = broadcast(fit(target, problem, present))
        if not bool(fitted.isfinite().all()):
            raise NotFinite(
                f"the refit of {target.name} is not finite; load the model in float32, or use a larger ridge."
            )
        weight.copy_(fitted[:-1].T)
        if bias is not None:
            bias.add_(fitted[-1])
        before, after = problem.error(present) / scale, problem.error(fitted) / scale
        require_bounded(target, after)
        return before, after

    @torch.no_grad()
    def restore(self, target: Sublayer, keep: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Remove units with a fit that is already known."""
        self.are_equal = self.are_equal and bool(keep.all())
        if self.are_equal:
            return
        shrink(target, keep)
        consumer = target.consumer
        consumer.weight.copy_(weight)
        if bias is not None and consumer.bias is not None:
            consumer.bias.copy_(bias)
        with guard_memory():
            for number in range(len(self.sample.batches)):  # the teacher passes the layer, as in the first run
                self._teacher.target(target, number)
        self._teacher.layer = target.index + 1

    def _fill(
        self,
        problem: LeastSquares,
        target: Sublayer,
        tick: Callable[[], None],
        token_weights: Sequence[Tensor] | None,
    ) -> float:
        """Add P, the student's features, and Q = X_T + Sub_T(X_T) − X_S − bias; returns ‖X_T + Sub_T(X_T)‖²."""
        bias = target.consumer.bias
        scale = torch.zeros((), dtype=torch.float64, device=target.consumer.weight.device)
        self._features.restart()
        with guard_memory():
            for number, batch in enumerate(self.sample.batches):
                goal = self._teacher.target(target, number)
                weights = None if token_weights is None else token_weights[number]
                squares = goal.square().sum(1).double()
                scale += (squares if weights is None else squares * weights).sum()
                observed = watch(self._model, target, batch, self.student[number])
                missing = goal - observed.stream
                if bias is not None:
                    missing -= bias
                if isinstance(problem, HalvedLeastSquares):
                    problem.add(observed.features, missing, weights, batch.example_of_tokens % 2)
                else:
                    problem.add(observed.features, missing, weights)
                self._features.add(number, target, observed.consumer_input)
                tick()
        self._teacher.layer = target.index + 1
        all_reduce_sum([*problem.tensors, scale])
        return float(scale)
