"""Teacher and student side by side: their streams at the layer at hand, and the refit of one to the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.errors import NotFinite, NotSound
from kprune.memory import batch_by_batch, tidy
from kprune.observe import advance, embed, pass_attention, pass_layer, replayed, watch
from kprune.ranks import add_up, agreed
from kprune.refit import LeastSquares
from kprune.sample import Sample
from kprune.shelf import Shelf, shelf
from kprune.sublayer import Sublayer, find, shrink

FEATURE_BYTES = 56 * 2**20
"""What may be kept of the features that a refit looked at: less than a pass holds that measures knowledge."""
BLOWN_UP = 100.0
"""The error of a stream from which on nothing is left of it; a stream of zeros has an error of 1."""

Fit = Callable[[Sublayer, LeastSquares, Tensor], Tensor]
"""A sublayer's new weights and bias change, (features + 1) × d, from its problem and the weights that it has."""


def best_fit(ridge: float) -> Fit:
    """The fit of K-prune: the best weights there are."""

    def fit(target: Sublayer, problem: LeastSquares, weights: Tensor) -> Tensor:
        try:
            return problem.solve(ridge, bias=target.consumer.bias is not None)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise NotFinite(
                f"the refit of {target.name} has no solution with ridge {ridge:g}; use a larger ridge or sample."
            ) from error

    return fit


def leave(target: Sublayer, problem: LeastSquares, weights: Tensor) -> Tensor:
    """No fit at all."""
    return weights


class Streams:
    """The student's stream at the current sublayer and the teacher's, a tensor per batch; none from below is kept.

    The teacher passes each layer once, ahead of the student, and leaves behind what the student's stream should be
    after each of the layer's sublayers. All of them lie where `offload` says, as `kprune.shelf` takes it.
    """

    @torch.no_grad()
    def __init__(
        self,
        teacher: PreTrainedModel,
        student: PreTrainedModel,
        sample: Sample,
        *,
        are_equal: bool = True,
        offload: str | Path | None = None,
    ) -> None:
        self._teacher_model, self._student_model = teacher, student
        self._originals = find(teacher)
        self.sample = sample
        self.student: Shelf = shelf(offload)
        self._teacher: Shelf = shelf(offload)
        with batch_by_batch():
            for number, batch in enumerate(sample.batches):
                self.student[number] = self._teacher[number] = embed(student, batch)
        self._student_at = self._teacher_at = 0  # layers
        self._past_attention = False  # of the student's
        self._wanted: Shelf = shelf(offload)  # by kind of sublayer and batch
        self._features: dict[int, tuple[Sublayer, Tensor]] = {}  # of some batches, by the sublayer refitted last
        self._has_much = False  # features, twice as much as are kept
        self.are_equal = are_equal  # nothing was removed yet, so the two streams are one

    @torch.no_grad()
    def move_to(self, target: Sublayer) -> None:
        """Take the student's stream, and with it the teacher's, up to a sublayer."""
        with batch_by_batch():
            while self._student_at < target.index:
                self._pass_layer()
            if target.kind == "ffn" and not self._past_attention:
                for number, batch in enumerate(self.sample.batches):
                    with self._without_making_again(number):
                        self.student[number] = pass_attention(self._student_model, target, batch, self.student[number])
                self._past_attention = True
        if self._has_much:
            tidy()  # what features took is room for the next measurement; of little, fetching it again costs more

    def _pass_layer(self) -> None:
        at = self._student_at
        for number, batch in enumerate(self.sample.batches):
            if self._teacher_at == at:
                self._teacher[number] = advance(self._teacher_model, batch, at, self._teacher[number])
            if self.are_equal:
                self.student[number] = self._teacher[number]
            else:
                with self._without_making_again(number):
                    self.student[number] = advance(
                        self._student_model, batch, at, self.student[number], past_attention=self._past_attention
                    )
        self._student_at = self._teacher_at = at + 1
        self._past_attention = False
        self._wanted.clear()

    def _without_making_again(self, number: int) -> AbstractContextManager[None]:
        """Within it, a pass of the student takes the features that the last refit looked at, where they were kept."""
        kept = self._features.pop(number, None)
        return replayed(*kept) if kept else nullcontext()

    @torch.no_grad()
    def remove(
        self,
        target: Sublayer,
        keep: Tensor,
        fit: Fit,
        tick: Callable[[], None] = lambda: None,
        token_weights: Sequence[Tensor] | None = None,
    ) -> tuple[float, float]:
        """Take the other units out of the target, and fit its consumer to the teacher's stream (Equations 10, 11).

        Returns ‖T − S‖² / ‖T‖² of the stream after the target, before and after the refit, both by `token_weights` (one
        tensor per batch) where there are any. A target that keeps all
        its units is refitted too, to make up for the error below it, unless there is none.
        """
        self.are_equal = self.are_equal and bool(keep.all())
        if self.are_equal:
            return 0.0, 0.0
        shrink(target, keep)
        problem, scale = self._problem(target, tick, token_weights)
        weight, bias = target.consumer.weight, target.consumer.bias
        removed = torch.cat([weight.T, weight.new_zeros(1, len(weight))]).double()
        fitted = agreed(fit(target, problem, removed))
        if not bool(fitted.isfinite().all()):
            raise NotFinite(
                f"the refit of {target.name} is not finite; load the model in float32, or use a larger ridge."
            )
        weight.copy_(fitted[:-1].T)
        if bias is not None:
            bias.add_(fitted[-1])
        before, after = problem.error(removed) / scale, problem.error(fitted) / scale
        if not after < BLOWN_UP:  # nor is NaN
            raise NotSound(
                f"the stream blows up: after {target.name} its error is {after:.3g} times as large as the dense "
                "model's stream itself; remove less, or use more text."
            )
        return before, after

    @torch.no_grad()
    def put(self, target: Sublayer, keep: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """The same with a fit that is known already."""
        self.are_equal = self.are_equal and bool(keep.all())
        if self.are_equal:
            return
        shrink(target, keep)
        consumer = target.consumer
        consumer.weight.copy_(weight)
        if bias is not None and consumer.bias is not None:
            consumer.bias.copy_(bias)
        with batch_by_batch():
            for number in range(len(self.sample.batches)):  # the teacher passes the layer, as it did then
                self._stream_wanted(target, number)
        self._teacher_at = target.index + 1

    def _problem(
        self, target: Sublayer, tick: Callable[[], None], token_weights: Sequence[Tensor] | None
    ) -> tuple[LeastSquares, float]:
        """P, the student's features, against Q = X_T + Sub_T(X_T) − X_S − bias; and ‖X_T + Sub_T(X_T)‖²."""
        bias, device = target.consumer.bias, target.consumer.weight.device
        problem = LeastSquares(target.features, target.consumer.out_features, device)
        scale = torch.zeros((), dtype=torch.float64, device=device)
        room = FEATURE_BYTES
        self._features.clear()
        with batch_by_batch():
            for number, batch in enumerate(self.sample.batches):
                wanted = self._stream_wanted(target, number)
                weights = None if token_weights is None else token_weights[number]
                of_tokens = wanted.square().sum(1).double()
                scale += (of_tokens if weights is None else of_tokens * weights).sum()
                own = watch(self._student_model, target, batch, self.student[number])
                lacking = wanted - own.stream
                if bias is not None:
                    lacking -= bias
                problem.add(own.features, lacking, weights)
                room -= own.padded.nbytes
                if target.units and room >= 0:
                    self._features[number] = target, own.padded
                tick()
        self._has_much = room < -FEATURE_BYTES
        self._teacher_at = target.index + 1
        add_up([*problem.tensors, scale])
        return problem, float(scale)

    def _stream_wanted(self, target: Sublayer, number: int) -> Tensor:
        """The teacher's stream after a sublayer on one batch: from the teacher's pass, or left behind by it."""
        if (target.kind, number) in self._wanted:
            return self._wanted.pop((target.kind, number))
        layer = [sublayer for sublayer in self._originals if sublayer.index == target.index]
        rest = layer[[sublayer.kind for sublayer in layer].index(target.kind) :]
        batch = self.sample.batches[number]
        found, self._teacher[number] = pass_layer(self._teacher_model, rest, batch, self._teacher[number])
        for sublayer, stream in zip(rest[1:], found[1:], strict=True):
            self._wanted[sublayer.kind, number] = stream
        return found[0]
