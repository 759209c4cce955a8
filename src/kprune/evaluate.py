"""Put models to a test: run them over it batch by batch, tell how good their answers are and how alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from kprune.data import longest_input
from kprune.errors import KpruneError, NotFinite
from kprune.exams import Answers, Exam, exam_for
from kprune.knowledge import divergence
from kprune.labels import training_labels
from kprune.metrics import Difference, Figure, difference, figure, metric_of
from kprune.observe import call
from kprune.outputs import OutputKind, Prediction, kind_of
from kprune.sample import Batch, regroup
from kprune.tasks import TASKS, Test, thin

BATCH_TOKENS = 4096
VOCABULARY_BATCH_TOKENS = 1024
"""Of models whose outputs are as wide as a vocabulary."""
MOST_PADDING = 0.05
"""Of a batch's tokens."""


@dataclass(frozen=True)
class Evaluation:
    """How good a model's answers to a test are, and, beside another model, how they differ."""

    test: str
    examples: int
    resampled: int
    """What intervals are taken over: examples, or a language model's blocks of text."""
    figures: tuple[Figure, ...]
    """Of the model; none where right answers are not known."""
    against: tuple[Figure, ...] = ()
    """Of the model that it is compared with."""
    differences: tuple[Difference, ...] = ()
    """The model's figures less the other's, on the same examples."""
    fidelity: tuple[Figure, ...] = ()
    """How alike the two models' outputs are, right or wrong; 100 of the first means equal."""
    notes: tuple[str, ...] = ()
    padding: float = 0.0
    """Share of the tokens that were padding."""
    seconds: float = 0.0
    forward_seconds: float = 0.0
    """Of the seconds, those spent in the models' own passes."""

    @property
    def drop(self) -> Difference | Figure:
        """What was lost, in points: of the metric that counts, or else of likeness to the other model.

        Positive where the model is worse; the interval is told the same way.
        """
        if self.differences:
            found: Difference | Figure = self.differences[0]
            sign = -1.0 if metric_of(found.name).larger_is_better else 1.0
            ends = sorted((sign * found.low, sign * found.high))
            return replace(found, value=sign * found.value, low=ends[0], high=ends[1])
        if not self.fidelity:
            raise KpruneError("a drop is measured against another model; evaluate with one.")
        alike = self.fidelity[0]
        return replace(alike, value=100 - alike.value, low=100 - alike.high, high=100 - alike.low)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(
    model: PreTrainedModel,
    tokenizer: Any,
    test: Test,
    *,
    against: PreTrainedModel | None = None,
    pooling: str = "mean",
    against_pooling: str | None = None,
    max_length: int | None = None,
    recalled: dict[int, Prediction] | None = None,
    progress: Callable[[float], None] = lambda fraction: None,
) -> Evaluation:
    """The model's figures on a test, each with its 95 % interval; with `against`, the differences and their p-values.

    A test without right answers needs `against`: then the likeness of the two models' outputs is told. `pooling`
    matters to bare encoders only, `against_pooling` where the other model's differs. `recalled` keeps what `against`
    said, batch by batch: a dictionary, empty at first, that serves all evaluations of one test beside one model.
    `progress` is called with the share of the work done.
    """
    started = perf_counter()
    models = [model] if against is None else [model, against]
    kinds = [kind_of(model, pooling=pooling), kind_of(against or model, pooling=against_pooling or pooling)]
    kind = kinds[0]
    exam = _exam(models, tokenizer, test, kind, max_length)
    metrics = _metrics(test, exam, model)
    answers = [exam.start(each.config) for each in models]
    alike = Likeness(kind, len(exam.examples))
    sitting = _Sitting(models, exam, kinds, recalled)
    for batch, predictions in sitting.run(progress):
        for answer, prediction in zip(answers, predictions, strict=True):
            answer.note(prediction, batch)
        if against is not None:
            alike.note(*predictions)
    columns = {name: [answer.columns(name) for answer in answers] for name in metrics}
    of_each = [tuple(figure(name, *columns[name][n]) for name in metrics) for n in range(len(models))]
    return Evaluation(
        test=test.name,
        examples=len(test.rows),
        resampled=len(exam.examples) if kind.is_vocabulary else len(test.rows),
        figures=of_each[0],
        against=of_each[1] if against is not None else (),
        differences=tuple(difference(name, ours[0], ours[1], theirs[1]) for name, (ours, theirs) in columns.items())
        if against is not None
        else (),
        fidelity=alike.figures() if against is not None else (),
        notes=_notes(answers),
        padding=sitting.padding,
        seconds=perf_counter() - started,
        forward_seconds=sitting.forward_seconds,
    )


def check(model: PreTrainedModel, tokenizer: Any, test: Test, *, pooling: str = "mean") -> None:
    """Refuse, before any work is done, a test that the model cannot sit beside another."""
    kind = kind_of(model, pooling=pooling)
    training_labels(test, kind.name, model.config)  # every label is looked at, and a few rows are tokenised
    exam = _exam([model, model], tokenizer, thin(test, 16), kind, None)
    _metrics(test, exam, model)
    exam.start(model.config)


def _exam(
    models: Sequence[PreTrainedModel], tokenizer: Any, test: Test, kind: OutputKind, max_length: int | None
) -> Exam:
    """The test, tokenised so that all models can read it."""
    _require_fit(test, kind, models[0], models[1] if len(models) > 1 else None)
    limits = [longest_input(tokenizer, model.config) for model in models]
    return exam_for(test, kind.name, tokenizer, min(*limits, max_length or 10**9))


def _require_fit(test: Test, kind: OutputKind, model: PreTrainedModel, against: PreTrainedModel | None) -> None:
    if test.kind is not None and test.kind != kind.name:
        task = TASKS.get(test.name)
        others = [
            row.name
            for row in TASKS.values()
            if task and row.kind == kind.name and (row.source, row.subset) == (task.source, task.subset)
        ]
        hint = f"use the task {others[0]}" if others else "pass a model that was fine-tuned for it"
        raise KpruneError(
            f"the model is made for {kind.name} ({type(model).__name__}), and {test.name} for {test.kind}; {hint}."
        )
    if against is None:
        if test.references is None and not kind.is_vocabulary:
            raise KpruneError(
                f"{test.name} has no right answers; name the column that has them (--label-column), "
                "or compare with the dense model (--against)."
            )
        return
    other = kind_of(against)
    if other.name != kind.name:
        raise KpruneError(f"the models are of two kinds, {kind.name} and {other.name}; compare models of one kind.")
    ours, theirs = model.config, against.config
    if "classification" in kind.name and ours.id2label != theirs.id2label:
        raise KpruneError(
            f"the models' classes differ ({ours.id2label} and {theirs.id2label}); give both the same id2label."
        )
    if ours.vocab_size != theirs.vocab_size:
        raise KpruneError(
            f"the models read {ours.vocab_size} and {theirs.vocab_size} different tokens, so one tokenizer cannot "
            "serve both; compare models that share one."
        )


def _metrics(test: Test, exam: Exam, model: PreTrainedModel) -> tuple[str, ...]:
    """Names of the metrics to tell: the test's, or what is usual."""
    if test.metrics and not exam.metrics:
        raise KpruneError(f"{test.name} has no right answers to take {test.metrics[0]} of; name their column.")
    usual = exam.metrics[:2] if exam.metrics[:1] in (("spearman",), ("answer-f1",)) else exam.metrics[:1]
    chosen = test.metrics or usual
    if (model.config.num_labels or 0) > 2:  # there is no one class to take it of
        chosen = tuple("macro-f1" if name == "f1" else name for name in chosen)
    for name in chosen:
        if metric_of(name).name not in exam.metrics:
            raise KpruneError(
                f"the metric {name!r} does not suit the model and its labels; use {', '.join(exam.metrics)}."
            )
    return chosen


def _notes(answers: Sequence[Answers]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for answer in answers for note in answer.notes))


class _Sitting:
    """Models run side by side over an exam's batches, longest inputs first."""

    def __init__(
        self,
        models: Sequence[PreTrainedModel],
        exam: Exam,
        kinds: Sequence[OutputKind],
        recalled: dict[int, Prediction] | None = None,
    ) -> None:
        config, device = models[0].config, models[0].device
        self.models, self.kinds = models, kinds
        self.recalled = None if kinds[0].is_vocabulary else recalled  # those are too many to keep
        self.batches = regroup(
            exam.examples,
            tokens=VOCABULARY_BATCH_TOKENS if kinds[0].is_vocabulary else BATCH_TOKENS,
            pad_id=config.pad_token_id or 0,
            device=device,
            most_padding=MOST_PADDING,
        ).batches
        self.forward_seconds = 0.0

    @property
    def padding(self) -> float:
        real = sum(int(batch.mask.sum()) for batch in self.batches)
        return 1.0 - real / sum(batch.mask.numel() for batch in self.batches)

    def run(self, progress: Callable[[float], None]) -> Iterator[tuple[Batch, list[Prediction]]]:
        total = sum(batch.mask.numel() for batch in self.batches)
        done = 0
        with torch.no_grad(), _evaluating(self.models):
            for number, batch in enumerate(self.batches):
                yield batch, [self._prediction(place, number) for place in range(len(self.models))]
                done += batch.mask.numel()
                progress(done / total)

    def _prediction(self, place: int, number: int) -> Prediction:
        """Of one model on one batch; the second model's may be known."""
        model, kind, batch = self.models[place], self.kinds[place], self.batches[number]
        if place == 0 or self.recalled is None:
            return self._read(model, kind, batch)
        if number not in self.recalled:
            self.recalled[number] = self._read(model, kind, batch)
        return self.recalled[number]

    def _read(self, model: PreTrainedModel, kind: OutputKind, batch: Batch) -> Prediction:
        began = perf_counter()
        outputs = call(model, batch)
        prediction = kind.read(outputs, batch)
        if bool(prediction.values.isnan().any()):
            raise NotFinite("the model's outputs are not numbers (NaN); check the checkpoint, or load it in float32.")
        self.forward_seconds += perf_counter() - began
        return prediction


@contextmanager
def _evaluating(models: Sequence[PreTrainedModel]) -> Iterator[None]:
    """The models in evaluation mode, and afterwards as they were."""
    modes = [model.training for model in models]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for model, mode in zip(models, modes, strict=True):
            model.train(mode)


class Likeness:
    """How alike two models' outputs are, example by example; needs no right answers."""

    def __init__(self, kind: OutputKind, examples: int) -> None:
        self.kind = kind
        self._agreement, self._divergence, self._weight = np.zeros((3, examples))
        self._values = np.zeros((2, examples))

    def note(self, ours: Prediction, theirs: Prediction) -> None:
        """Add a batch's rows."""
        example = ours.example.cpu().numpy()
        if self.kind.is_distribution:
            same = (ours.values.argmax(-1) == theirs.values.argmax(-1)).float() * ours.weights
            lost = divergence(ours.values, theirs.values, ours.weights, 1.0)
            np.add.at(self._agreement, example, same.cpu().double().numpy())
            np.add.at(self._divergence, example, lost.cpu().double().numpy())
            np.add.at(self._weight, example, ours.weights.cpu().double().numpy())
        elif self.kind.name == "embedding":
            self._agreement[example] = (ours.values * theirs.values).sum(-1).cpu().double().numpy()
        else:
            self._values[:, example] = torch.stack([ours.values[:, 0], theirs.values[:, 0]]).cpu().double().numpy()

    def figures(self) -> tuple[Figure, ...]:
        """The one that is 100 where the outputs are equal, then others."""
        nothing = np.zeros(len(self._agreement))
        if self.kind.is_distribution:
            return (
                figure("agreement", nothing, (self._agreement / self._weight).round(6)),
                figure("divergence", nothing, self._divergence),
            )
        if self.kind.name == "embedding":
            return (figure("cosine", nothing, self._agreement),)
        return (
            replace(figure("spearman", self._values[1], self._values[0]), name="rank agreement"),
            figure("squared-error", nothing, np.square(self._values[0] - self._values[1])),
        )
