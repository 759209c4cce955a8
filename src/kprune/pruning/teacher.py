"""The teacher: the dense model, its predictions on the sample, and its streams. All passes of the teacher are here."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.errors import NotFinite
from kprune.models.batches import Sample
from kprune.models.canonical import to_canonical
from kprune.models.families import family_of
from kprune.models.first_token import first_token_only
from kprune.models.outputs import OutputKind, Prediction, next_token_rows
from kprune.models.passes import advance, forward, forward_and_top, forward_to_top, head_at, pass_layer
from kprune.models.sublayer import Sublayer, find
from kprune.runtime.tensor_store import TensorStore, open_store


def teacher_of(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the model in evaluation mode and at least float32; weights are shared if their dtype allows it."""
    tensors = list(chain(model.parameters(), model.buffers()))
    is_coarse = any(t.is_floating_point() and t.element_size() < 4 for t in tensors)
    shared = {} if is_coarse else {id(t): t for t in tensors}
    teacher: PreTrainedModel = copy.deepcopy(model, shared).eval()
    teacher = teacher.float() if is_coarse else teacher
    to_canonical(teacher)
    return teacher


class TeacherPredictions:
    """Teacher outputs per batch, cached on first use.

    A measurement of a student that still equals the teacher records them without an additional pass. Rows as wide as a
    vocabulary are too large to keep: for a language model the last stream is kept, and the head runs again.
    """

    def __init__(
        self, teacher: PreTrainedModel, kind: OutputKind, sample: Sample, *, offload: str | Path | None = None
    ) -> None:
        self.teacher, self.kind, self.sample = teacher, kind, sample
        self._predictions: dict[int, Prediction] = {}
        self._streams: TensorStore = open_store(offload)

    def record(self, number: int, outputs: Any, top: Tensor) -> Prediction:
        """Keep the outputs for a batch, unless they are known, and return them.

        Passes that start at different sublayers can differ in the last bit: only the first one is kept.
        """
        prediction = self.kind.read(outputs, self.sample.batches[number]).detach()
        if bool((prediction.values.isnan() | prediction.values.isposinf()).any()):
            raise _not_finite()
        if not self._is_known(number):
            if self.kind.is_vocabulary:
                self._streams[number] = top
            else:
                self._predictions[number] = prediction
        return prediction

    def record_top(self, number: int, top: Tensor) -> None:
        """Keep the last stream of a batch, from which a language model's logits follow, unless it is known."""
        if not bool(top.isfinite().all()):
            raise _not_finite()
        if not self._is_known(number):
            self._streams[number] = top

    @torch.no_grad()
    def part(self, number: int, positions: Tensor) -> Prediction:
        """A language model's predictions at some positions."""
        batch = self.sample.batches[number]
        if not self._is_known(number):
            self.record_top(number, forward_to_top(self.teacher, batch))
        return next_token_rows(head_at(self.teacher, batch, self._streams[number], positions), batch, positions)

    @torch.no_grad()
    def __getitem__(self, number: int) -> Prediction:
        batch = self.sample.batches[number]
        if not self._is_known(number):
            # With the same saving as in a measurement, so that both give the same bits.
            with self.saving(find(self.teacher)):
                self.record(number, *forward_and_top(self.teacher, batch))
        if number in self._predictions:
            return self._predictions[number]
        top = self.teacher.config.num_hidden_layers
        return self.kind.read(forward(self.teacher, batch, start=top, stream=self._streams[number]), batch)

    def saving(self, sublayers: Sequence[Sublayer]) -> AbstractContextManager[None]:
        """Within the context, the topmost of the sublayers compute only what the predictions need."""
        if not self._use_first_token:
            return nullcontext()
        top = self.teacher.config.num_hidden_layers - 1
        return first_token_only([sublayer for sublayer in sublayers if sublayer.index == top and sublayer.units])

    def state(self) -> dict[str, Tensor] | None:
        """All cached tensors by name, for the journal; None until every batch is known."""
        numbers = range(len(self.sample.batches))
        if not all(map(self._is_known, numbers)):
            return None
        if self.kind.is_vocabulary:
            return {f"{number}.stream": self._streams[number] for number in numbers}
        return {
            f"{number}.{field.name}": getattr(self._predictions[number], field.name)
            for number in numbers
            for field in fields(Prediction)
        }

    def restore(self, state: dict[str, Tensor]) -> bool:
        """Take predictions from the journal; False if they do not belong to the present batches."""
        numbers = range(len(self.sample.batches))
        try:
            if not all(self._fits(number, state) for number in numbers):
                return False
        except KeyError:  # the journal's run had fewer batches
            return False
        for number in numbers:
            device = self.sample.batches[number].mask.device
            if self.kind.is_vocabulary:
                self._streams[number] = state[f"{number}.stream"].to(device)
            else:
                tensors = {field.name: state[f"{number}.{field.name}"].to(device) for field in fields(Prediction)}
                self._predictions[number] = Prediction(**tensors)
        return True

    def _fits(self, number: int, state: dict[str, Tensor]) -> bool:
        """Whether stored predictions belong to a batch, by its shape or its examples."""
        batch = self.sample.batches[number]
        if self.kind.is_vocabulary:
            return state[f"{number}.stream"].shape[:2] == batch.mask.shape
        return torch.equal(state[f"{number}.example"].unique(), batch.example.sort().values.cpu())

    def _is_known(self, number: int) -> bool:
        return number in self._predictions or number in self._streams

    @cached_property
    @torch.no_grad()
    def _use_first_token(self) -> bool:
        """Whether predictions depend on each example's first token alone: NaN at other tokens does not reach them."""
        config = self.teacher.config
        if self.kind.is_vocabulary or not family_of(config).first_token_saving:
            return False
        batch = max(self.sample.batches, key=lambda batch: batch.mask.shape[1])
        stream = torch.full((*batch.mask.shape, config.hidden_size), torch.nan, device=batch.mask.device)
        stream[:, 0] = 1.0
        outputs = forward(self.teacher, batch, start=config.num_hidden_layers, stream=stream.to(self.teacher.dtype))
        return not bool(self.kind.read(outputs, batch).values.isnan().any())


def _not_finite() -> NotFinite:
    return NotFinite(
        "the model's own outputs on the sample are not finite (NaN or infinity); "
        "check the checkpoint, or load it in float32."
    )


class TeacherStreams:
    """The teacher's stream at the current layer, and the streams that the student should have after its sublayers.

    The teacher passes each layer once and leaves behind X_T + Sub_T(X_T) of each of the layer's sublayers.
    """

    def __init__(
        self,
        teacher: PreTrainedModel,
        sample: Sample,
        offload: str | Path | None,
        kept: TensorStore | None = None,
    ) -> None:
        self._teacher, self._sample = teacher, sample
        self._kept = kept
        self._sublayers = find(teacher)
        self.streams: TensorStore = open_store(offload)
        self._targets: TensorStore = open_store(offload)  # by kind of sublayer and batch
        self.layer = 0

    def advance(self, number: int) -> Tensor:
        """The stream of a batch after the current layer; the caller moves to the next `layer` after all batches."""
        self.streams[number] = advance(self._teacher, self._sample.batches[number], self.layer, self.streams[number])
        return self.streams[number]

    def enter_layer(self, index: int) -> None:
        """Move to a layer, and forget the targets of the one below."""
        self.layer = index
        self._targets.clear()

    def target(self, sublayer: Sublayer, number: int) -> Tensor:
        """X_T + Sub_T(X_T) of a sublayer on one batch, at real tokens; (tokens, d).

        With a store of kept targets, each is computed once for all runs. A run that has read one needs those of all
        sublayers above and no stream of the teacher, so that the streams need not follow.
        """
        key = sublayer.index, sublayer.kind, number
        if self._kept is not None and key in self._kept:
            return self._kept[key]
        target = self._next_target(sublayer, number)
        if self._kept is not None:
            self._kept[key] = target
        return target

    def _next_target(self, sublayer: Sublayer, number: int) -> Tensor:
        if (sublayer.kind, number) in self._targets:
            return self._targets.pop((sublayer.kind, number))
        layer = [each for each in self._sublayers if each.index == sublayer.index]
        rest = layer[[each.kind for each in layer].index(sublayer.kind) :]
        batch = self._sample.batches[number]
        targets, self.streams[number] = pass_layer(self._teacher, rest, batch, self.streams[number])
        for other, stream in zip(rest[1:], targets[1:], strict=True):
            self._targets[other.kind, number] = stream
        return targets[0]
