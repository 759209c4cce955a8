"""Knowledge of the units of a student, measured on a sample (Section 3.2 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.compensate import Sensitivity
from kprune.errors import KpruneError, NotFinite
from kprune.knowledge import (
    Knowledge,
    ReleasedKnowledge,
    divergence,
    divergence_probe,
    random_signs,
    squared_error,
    squared_error_probe,
)
from kprune.memory import TIDY_EVERY, batch_by_batch, tidy
from kprune.observe import for_first_tokens, forward, forward_and_top, gradients, observe, output_gradients
from kprune.outputs import OutputKind, Prediction
from kprune.ranks import add_up, share
from kprune.sample import Batch, Sample
from kprune.search import score
from kprune.settings import CRITERIA, Settings
from kprune.shelf import Shelf, shelf
from kprune.sublayer import Sublayer, find

RELEASED_GROUP = 32
"""Examples whose gradients the authors' code averages before it squares them (12 for SQuAD)."""


class References:
    """The teacher's predictions, batch by batch: noted from a pass that was made anyway, or else asked for.

    Rows as wide as a vocabulary are too many to hold: of a language model the last stream is kept, and its head run
    anew each time.
    """

    def __init__(
        self, teacher: PreTrainedModel, kind: OutputKind, sample: Sample, *, offload: str | Path | None = None
    ) -> None:
        self.teacher, self.kind, self.sample = teacher, kind, sample
        self._predictions: dict[int, Prediction] = {}
        self._streams: Shelf = shelf(offload)

    def note(self, number: int, outputs: Any, top: Tensor) -> Prediction:
        """Keep what the teacher, or a student that is still its equal, gave for a batch, the first time; and return it.

        Passes that start at other sublayers may differ in the last bit.
        """
        prediction = self.kind.read(outputs, self.sample.batches[number]).detach()
        if bool((prediction.values.isnan() | prediction.values.isposinf()).any()):
            raise NotFinite(
                "the model's own outputs on the sample are not finite (NaN or infinity); "
                "check the checkpoint, or load it in float32."
            )
        if not self._are_known(number):
            if self.kind.is_vocabulary:
                self._streams[number] = top
            else:
                self._predictions[number] = prediction
        return prediction

    def _are_known(self, number: int) -> bool:
        return number in self._predictions or number in self._streams

    @cached_property
    @torch.no_grad()
    def are_of_first_tokens(self) -> bool:
        """Whether predictions are made from each example's first token alone: NaN at all others does not reach them."""
        if self.kind.is_vocabulary:
            return False
        batch = max(self.sample.batches, key=lambda batch: batch.mask.shape[1])
        config = self.teacher.config
        stream = torch.full((*batch.mask.shape, config.hidden_size), torch.nan, device=batch.mask.device)
        stream[:, 0] = 1.0
        outputs = forward(self.teacher, batch, start=config.num_hidden_layers, stream=stream.to(self.teacher.dtype))
        return not bool(self.kind.read(outputs, batch).values.isnan().any())

    def spared(self, sublayers: Sequence[Sublayer], batch: Batch) -> AbstractContextManager[None]:
        """Within it, these sublayers make no more of a batch than the predictions need."""
        if not self.are_of_first_tokens:
            return nullcontext()
        top = self.teacher.config.num_hidden_layers - 1
        return for_first_tokens([s for s in sublayers if s.index == top and s.units], batch)

    @torch.no_grad()
    def __getitem__(self, number: int) -> Prediction:
        batch = self.sample.batches[number]
        if not self._are_known(number):
            # As in a measurement, where they are noted else: to the last bit.
            with self.spared(find(self.teacher), batch):
                self.note(number, *forward_and_top(self.teacher, batch))
        if number in self._predictions:
            return self._predictions[number]
        top = self.teacher.config.num_hidden_layers
        return self.kind.read(forward(self.teacher, batch, start=top, stream=self._streams[number]), batch)


@dataclass(frozen=True)
class Measured:
    """What is known of one sublayer's units."""

    scores: Tensor
    """Importance per FLOP, a number per unit (Equation 9)."""
    token_weights: list[Tensor] | None = None
    """How much a change of the output counts at each real token, batch by batch; None: the same everywhere."""


def measure(
    student: PreTrainedModel,
    sublayers: Sequence[Sublayer],
    costs: Sequence[float],
    streams: Mapping[int, Tensor],
    references: References,
    settings: Settings,
    *,
    is_teacher: bool = False,
    only_references: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> list[Measured]:
    """The knowledge of every unit in `sublayers`.

    `streams` are the student's at the lowest sublayer, a tensor per batch; `tick` is called after each.
    While the student is still the teacher's equal (`is_teacher`), the references are taken from its own pass;
    `only_references` makes that pass and measures nothing.
    """
    sample, kind, lowest = references.sample, references.kind, sublayers[0]
    sums = {sublayer: _sums(sublayer, sample, settings) for sublayer in sublayers}
    is_compensated = CRITERIA[settings.criterion].is_compensated
    felt = _rooms(sublayers, sample) if is_compensated else {}
    with batch_by_batch():
        for number, batch in enumerate(sample.batches):
            adding = _adding(sums, batch, kind, settings, {sublayer: rooms[number] for sublayer, rooms in felt.items()})
            with torch.enable_grad(), references.spared(sublayers, batch), adding:
                outputs, top = forward_and_top(
                    student, batch, start=lowest.index, stream=streams[number], past_attention=lowest.kind == "ffn"
                )
                reference = references.note(number, outputs, top) if is_teacher else references[number]
                if not only_references:
                    objective(kind, kind.read(outputs, batch), reference, settings, batch.labels).backward()
            if (is_compensated or is_teacher) and (number + 1) % TIDY_EVERY == 0:  # else nothing is left behind
                tidy()
            tick()
    if only_references:
        return []
    if is_compensated:
        tidy()  # what passes took is room for what scores take, and that for the refits
    for of_sublayer in sums.values():
        add_up(of_sublayer.tensors)
    # Of several processes, each reckons for some of the sublayers, as many wide ones as the others.
    own = set(share(sorted(sublayers, key=lambda sublayer: sublayer.features)))
    scores = [
        _score(sublayer, sums.pop(sublayer), cost, sample, kind, settings)
        if sublayer in own
        else torch.zeros(sublayer.units, dtype=torch.float64, device=sublayer.consumer.weight.device)
        for sublayer, cost in zip(sublayers, costs, strict=True)
    ]
    add_up(scores)
    if is_compensated:
        tidy()
    return [
        Measured(of_units, _token_weights(felt[sublayer]) if felt else None)
        for of_units, sublayer in zip(scores, sublayers, strict=True)
    ]


def objective(
    kind: OutputKind, student: Prediction, teacher: Prediction, settings: Settings, labels: Tensor | None = None
) -> Tensor:
    """The sum over the batch of what a criterion differentiates: the knowledge lost, or a probe of its curvature."""
    values, reference, weights = student.values, teacher.values, teacher.weights
    if settings.criterion == "gradient":
        return task_loss(kind, student, teacher, labels).sum()
    if not CRITERIA[settings.criterion].is_probed:
        if kind.is_distribution:
            return divergence(values, reference, weights, settings.temperature).sum()
        return squared_error(values, reference, weights).sum()
    signs = random_signs(teacher.example, teacher.position, values.shape[-1], settings.seed)
    if kind.is_distribution:
        return divergence_probe(values, reference, weights, signs, settings.temperature).sum()
    return squared_error_probe(values, weights, signs).sum()


def task_loss(kind: OutputKind, student: Prediction, teacher: Prediction, labels: Tensor | None) -> Tensor:
    """The loss that a model is trained with, a number per row; without labels, the teacher's own choice is taken.

    An output that is a value, and its own label, has no gradient: there labels are needed.
    """
    if kind.is_distribution:
        single = labels is not None and kind.name == "classification"
        right = labels.long() if single and labels is not None else teacher.values.argmax(-1)
        return teacher.weights * torch.nn.functional.cross_entropy(student.values, right, reduction="none")
    if labels is None or student.values.shape[-1] != 1:
        raise KpruneError(f"the loss of a model for {kind.name} needs labels; pass a labelled sample.")
    return teacher.weights * (student.values[:, 0] - labels.to(student.values.dtype)).square()


def _sums(sublayer: Sublayer, sample: Sample, settings: Settings) -> Knowledge | Sensitivity:
    device = sublayer.consumer.weight.device
    if CRITERIA[settings.criterion].is_compensated:
        return Sensitivity(sublayer.features, sublayer.consumer.out_features, device)
    if settings.criterion == "released":
        return ReleasedKnowledge(sublayer.units, sublayer.width, device, examples=sample.examples, group=RELEASED_GROUP)
    return Knowledge(sublayer.units, sublayer.width, device)


@contextmanager
def _adding(
    sums: Mapping[Sublayer, Knowledge | Sensitivity],
    batch: Batch,
    kind: OutputKind,
    settings: Settings,
    felt: Mapping[Sublayer, Tensor],
) -> Iterator[None]:
    """Within it, what a batch's way up and back shows is added to the sums; `felt`: how much each token is felt."""
    looked_at: set[Sublayer] = set()
    real = batch.mask.float()

    def look(sublayer: Sublayer, features: Tensor) -> None:
        found = sums[sublayer]
        if isinstance(found, Knowledge) and sublayer not in looked_at:  # those of all tokens come before any others
            looked_at.add(sublayer)
            found.add_features(features.detach(), real)

    def feel(sublayer: Sublayer, features: Tensor, gradient: Tensor) -> None:
        found = sums[sublayer]
        if isinstance(found, Knowledge):
            found.add_gradient((features * gradient).sum(1), batch.example)
            return
        if kind.adds_up:
            found.add_examples(batch.totals(features) / batch.mask.sum(1, keepdim=True), batch.totals(gradient))
        of_tokens = found.add(batch.real(features), batch.real(gradient), floor=settings.rep_weight)
        felt[sublayer].copy_(of_tokens)

    if CRITERIA[settings.criterion].is_compensated:
        with output_gradients(list(sums), feel):
            yield
    else:
        # Features are looked at on the way up, where they were just made: on the way back they would be fetched again.
        with observe(list(sums) if settings.rep_weight else [], look), gradients(list(sums), feel):
            yield


def _rooms(sublayers: Sequence[Sublayer], sample: Sample) -> dict[Sublayer, tuple[Tensor, ...]]:
    """Room for a number per sublayer and real token, batch by batch, in one piece: many small ones scatter memory."""
    sizes = [int(batch.mask.sum()) for batch in sample.batches]
    weights = [sublayer.consumer.weight for sublayer in sublayers]
    return {s: weight.new_empty(sum(sizes)).split(sizes) for s, weight in zip(sublayers, weights, strict=True)}


def _token_weights(felt: tuple[Tensor, ...]) -> list[Tensor]:
    """A token that is felt as much as the mean counts twice as much as one that is not felt at all."""
    flat = torch.cat(felt).double()
    total = torch.stack([flat.sum(), flat.new_tensor(len(flat))])
    add_up([total])
    mean = (total[0] / total[1]).to(felt[0].dtype)
    return [1.0 + values / mean if mean > 0 else torch.ones_like(values) for values in felt]


def _score(
    sublayer: Sublayer,
    sums: Knowledge | Sensitivity,
    cost: float,
    sample: Sample,
    kind: OutputKind,
    settings: Settings,
) -> Tensor:
    consumer = sublayer.consumer
    if isinstance(sums, Sensitivity):
        has_bias = consumer.bias is not None
        try:
            predictive = sums.knowledge(consumer.weight, sublayer.width, sample.examples, bias=has_bias)
        except ArithmeticError as error:
            raise NotFinite(f"{_unknown(sublayer)}; load the model in float32.") from error
        representational = torch.zeros_like(predictive)  # it is in the sums
    else:
        predictive = sums.predictive(sample.examples)
        if settings.criterion == "paper" and kind.is_distribution:
            predictive = predictive / settings.temperature**2
        representational = sums.representational(consumer.weight, sample.examples, sample.tokens)
    result = score(
        predictive,
        representational,
        cost,
        rep_weight=settings.rep_weight,
        unit_weight=settings.head_weight if sublayer.kind == "attention" else 1.0,
    )
    if not bool(result.isfinite().all()):
        raise NotFinite(f"{_unknown(sublayer)}; load the model in float32.")
    return result


def _unknown(sublayer: Sublayer) -> str:
    return f"the knowledge measured in {sublayer.name} is not finite"
