"""What the teacher says of each batch: its predictions and its streams, kept while there is room."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.errors import NotFinite
from kprune.models.batches import Batch
from kprune.models.outputs import OutputKind, Prediction, next_token_rows
from kprune.models.passes import forward, forward_with_streams, head_at, layers_of

KEPT_BYTES = 2**30
"""Tensors of the teacher that are kept, of one part of the text; those of further batches are computed in each pass."""

HELD_OUT = "held out"
"""The part of the text that judges."""

Key = tuple[int | str, int]


@dataclass(frozen=True)
class Target:
    """The teacher on one batch."""

    prediction: Prediction | None
    """None for a language model: rows as wide as a vocabulary are computed from `top` when they are needed."""
    top: Tensor | None
    """A language model's stream after the last layer."""
    streams: tuple[Tensor, ...]
    """The stream after each layer at real tokens, in bfloat16; empty if hidden states do not count."""

    @property
    def nbytes(self) -> int:
        values = None if self.prediction is None else self.prediction.values
        return sum(tensor.nbytes for tensor in (*self.streams, self.top, values) if tensor is not None)


class Targets:
    """The teacher's targets by batch."""

    def __init__(self, teacher: PreTrainedModel, kind: OutputKind) -> None:
        self.teacher, self.kind = teacher, kind
        self._kept: dict[Key, Target] = {}
        self._part: int | str = HELD_OUT

    @torch.no_grad()
    def of(self, key: Key, batch: Batch, *, with_streams: bool) -> Target:
        """The target of a batch; `key` is its part of the text, and its number there."""
        if key in self._kept:
            return self._kept[key]
        target = self._compute(batch, with_streams)
        if key[0] not in (HELD_OUT, self._part):  # a new part of the text takes the place of the last one
            self._kept = {other: kept for other, kept in self._kept.items() if other[0] == HELD_OUT}
            self._part = key[0]
        if target.nbytes + sum(kept.nbytes for kept in self._kept.values()) <= KEPT_BYTES:
            self._kept[key] = target
        return target

    @torch.no_grad()
    def prediction(self, target: Target, batch: Batch) -> Prediction:
        """All rows of a batch."""
        if target.prediction is not None:
            return target.prediction
        outputs = forward(self.teacher, batch, start=len(layers_of(self.teacher)), stream=target.top)
        return self.kind.read(outputs, batch)

    @torch.no_grad()
    def part(self, target: Target, batch: Batch, positions: Tensor) -> Prediction:
        """A causal language model's rows at some positions."""
        assert target.top is not None
        return next_token_rows(head_at(self.teacher, batch, target.top, positions), batch, positions)

    def _compute(self, batch: Batch, with_streams: bool) -> Target:
        outputs, streams = forward_with_streams(self.teacher, batch, with_head=not self.kind.is_vocabulary)
        prediction = None if self.kind.is_vocabulary else self.kind.read(outputs, batch).detach()
        read = streams[-1] if prediction is None else prediction.values
        if bool((read.isnan() | read.isposinf()).any()):
            raise NotFinite(
                "the dense model's own outputs on the text are not finite (NaN or infinity); check the checkpoint, or "
                "load it in float32."
            )
        kept = tuple(batch.real(stream).bfloat16() for stream in streams) if with_streams else ()
        return Target(prediction, streams[-1] if self.kind.is_vocabulary else None, kept)
