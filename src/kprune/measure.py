"""Knowledge of the units of a student, measured on a sample (Section 3.2 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.errors import NotFinite
from kprune.knowledge import (
    Knowledge,
    ReleasedKnowledge,
    divergence,
    divergence_probe,
    random_signs,
    squared_error,
    squared_error_probe,
)
from kprune.observe import forward, gradients, real
from kprune.outputs import OutputKind, Prediction
from kprune.sample import Batch, Sample
from kprune.search import score
from kprune.settings import Settings
from kprune.sublayer import Sublayer

RELEASED_GROUP = 32
"""Examples whose gradients the authors' code averages before it squares them (12 for SQuAD)."""


class References:
    """The teacher's predictions, batch by batch.

    Rows as wide as a vocabulary are too many to hold: of a language model the last stream is kept, and its head run
    anew each time.
    """

    @torch.no_grad()
    def __init__(self, teacher: PreTrainedModel, kind: OutputKind, sample: Sample) -> None:
        self.teacher, self.kind, self.sample = teacher, kind, sample
        self.kept: list[Prediction] = []
        self.streams: list[Tensor] = []
        for batch in sample.batches:
            outputs = forward(teacher, batch, output_hidden_states=kind.is_vocabulary)
            prediction = kind.read(outputs, batch)
            if bool((prediction.values.isnan() | prediction.values.isposinf()).any()):
                raise NotFinite(
                    "the model's own outputs on the sample are not finite (NaN or infinity); "
                    "check the checkpoint, or load it in float32."
                )
            if kind.is_vocabulary:
                self.streams.append(outputs.hidden_states[-1])
            else:
                self.kept.append(prediction)

    @torch.no_grad()
    def __getitem__(self, number: int) -> Prediction:
        if self.kept:
            return self.kept[number]
        batch = self.sample.batches[number]
        top = self.teacher.config.num_hidden_layers
        return self.kind.read(forward(self.teacher, batch, start=top, stream=self.streams[number]), batch)


def scores(
    student: PreTrainedModel,
    sublayers: Sequence[Sublayer],
    costs: Sequence[float],
    streams: Sequence[Tensor],
    references: References,
    settings: Settings,
    tick: Callable[[], None] = lambda: None,
) -> list[Tensor]:
    """Importance per FLOP of every unit in `sublayers`, a vector each (Equation 9).

    `streams` are the student's before the lowest sublayer's layer, a tensor per batch; `tick` is called after each.
    """
    sample, kind = references.sample, references.kind
    sums = {sublayer: _sums(sublayer, sample, settings) for sublayer in sublayers}
    for number, batch in enumerate(sample.batches):

        def feel(sublayer: Sublayer, features: Tensor, gradient: Tensor, batch: Batch = batch) -> None:
            sums[sublayer].add_gradient((features * gradient).sum(1), batch.example)
            if settings.rep_weight:
                sums[sublayer].add_features(real(features, batch))

        with torch.enable_grad(), gradients(sublayers, feel):
            outputs = forward(student, batch, start=sublayers[0].index, stream=streams[number])
            objective(kind, kind.read(outputs, batch), references[number], settings).backward()
        tick()
    return [
        _score(sublayer, sums[sublayer], cost, sample, kind, settings)
        for sublayer, cost in zip(sublayers, costs, strict=True)
    ]


def objective(kind: OutputKind, student: Prediction, teacher: Prediction, settings: Settings) -> Tensor:
    """The sum over the batch of what a criterion differentiates: the knowledge lost, or a probe of its curvature."""
    values, reference, weights = student.values, teacher.values, teacher.weights
    if settings.criterion != "fisher":
        if kind.is_distribution:
            return divergence(values, reference, weights, settings.temperature).sum()
        return squared_error(values, reference, weights).sum()
    signs = random_signs(teacher.example, teacher.position, values.shape[-1], settings.seed)
    if kind.is_distribution:
        return divergence_probe(values, reference, weights, signs, settings.temperature).sum()
    return squared_error_probe(values, weights, signs).sum()


def _sums(sublayer: Sublayer, sample: Sample, settings: Settings) -> Knowledge:
    device = sublayer.consumer.weight.device
    if settings.criterion == "released":
        return ReleasedKnowledge(sublayer.units, sublayer.width, device, examples=sample.examples, group=RELEASED_GROUP)
    return Knowledge(sublayer.units, sublayer.width, device)


def _score(
    sublayer: Sublayer, sums: Knowledge, cost: float, sample: Sample, kind: OutputKind, settings: Settings
) -> Tensor:
    predictive = sums.predictive(sample.examples)
    if settings.criterion == "paper" and kind.is_distribution:
        predictive = predictive / settings.temperature**2
    representational = sums.representational(sublayer.consumer.weight, sample.examples, sample.tokens)
    result = score(
        predictive,
        representational,
        cost,
        rep_weight=settings.rep_weight,
        unit_weight=settings.head_weight if sublayer.kind == "attention" else 1.0,
    )
    if not bool(result.isfinite().all()):
        raise NotFinite(f"the knowledge measured in {sublayer.name} is not finite; load the model in float32.")
    return result
