"""Teacher and student side by side: their streams at the layer at hand, and the refit of one to the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.errors import NotFinite
from kprune.observe import advance, embed, watch
from kprune.refit import LeastSquares
from kprune.sample import Sample
from kprune.sublayer import Sublayer, find, shrink


class Streams:
    """The two streams before the current layer, a tensor per batch; nothing of the layers below is kept."""

    @torch.no_grad()
    def __init__(self, teacher: PreTrainedModel, student: PreTrainedModel, sample: Sample) -> None:
        self._teacher_model, self._student_model = teacher, student
        self._originals = {(sublayer.index, sublayer.kind): sublayer for sublayer in find(teacher)}
        self.sample = sample
        self.teacher = [embed(teacher, batch) for batch in sample.batches]
        self.student = list(self.teacher)
        self._teacher_at = self._student_at = 0
        self.are_equal = True  # nothing was removed yet, so the two streams are one

    @torch.no_grad()
    def move_to(self, layer: int) -> None:
        """Take both streams up to the input of a layer."""
        while self._student_at < layer:
            at = self._student_at
            for number, batch in enumerate(self.sample.batches):
                if self._teacher_at == at:
                    self.teacher[number] = advance(self._teacher_model, batch, at, self.teacher[number])
                if self.are_equal:
                    self.student[number] = self.teacher[number]
                else:
                    self.student[number] = advance(self._student_model, batch, at, self.student[number])
            self._student_at = at + 1
            self._teacher_at = max(self._teacher_at, at + 1)

    @torch.no_grad()
    def remove(
        self, target: Sublayer, keep: Tensor, ridge: float, tick: Callable[[], None] = lambda: None
    ) -> tuple[float, float]:
        """Take the other units out of the target, and refit its consumer to the teacher's stream (Equations 10, 11).

        Returns ‖T − S‖² / ‖T‖² of the stream after the target, before and after the refit. A target that keeps all
        its units is refitted too, to make up for the error below it, unless there is none.
        """
        self.are_equal = self.are_equal and bool(keep.all())
        if self.are_equal:
            return 0.0, 0.0
        shrink(target, keep)
        problem, scale = self._problem(target, tick)
        weight, bias = target.consumer.weight, target.consumer.bias
        removed = torch.cat([weight.T, weight.new_zeros(1, len(weight))]).double()
        try:
            fitted = problem.solve(ridge, bias=bias is not None)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise NotFinite(
                f"the refit of {target.name} has no solution with ridge {ridge:g}; use a larger ridge or sample."
            ) from error
        if not bool(fitted.isfinite().all()):
            raise NotFinite(
                f"the refit of {target.name} is not finite; load the model in float32, or use a larger ridge."
            )
        weight.copy_(fitted[:-1].T)
        if bias is not None:
            bias.add_(fitted[-1])
        return problem.error(removed) / scale, problem.error(fitted) / scale

    def _problem(self, target: Sublayer, tick: Callable[[], None]) -> tuple[LeastSquares, float]:
        """P, the student's features, against Q = X_T + Sub_T(X_T) − X_S − bias; and ‖X_T + Sub_T(X_T)‖²."""
        original = self._originals[target.index, target.kind]
        bias = target.consumer.bias
        problem = LeastSquares(target.features, original.consumer.out_features, self.student[0].device)
        scale = 0.0
        for number, batch in enumerate(self.sample.batches):
            until: Literal["layer", "output"] = "layer" if target.is_last else "output"
            seen = watch(self._teacher_model, original, batch, self.teacher[number], until=until)
            assert seen.output is not None
            wanted = seen.stream + seen.output
            scale += float(wanted.double().square().sum())
            if seen.after is not None:  # the teacher's stream before this layer is needed no more
                self.teacher[number] = seen.after
            own = watch(self._student_model, target, batch, self.student[number], until="features")
            lacking = wanted - own.stream
            problem.add(own.features, lacking if bias is None else lacking - bias)
            tick()
        if target.is_last:
            self._teacher_at = target.index + 1
        return problem, scale
