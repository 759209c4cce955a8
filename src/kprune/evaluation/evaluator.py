"""Evaluate a model on a test, alone or against another model on the same examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

from transformers import PreTrainedModel

from kprune.checkpoints.tokenizer_checks import require_fit
from kprune.data.calibration import longest_input, require_room, whole_number
from kprune.data.items import MEDIA
from kprune.data.labels import class_names, training_labels
from kprune.data.processing import reader_of
from kprune.data.rankings import RANKING_METRICS, Passages, require_relevant
from kprune.data.tagging import TaggedWords
from kprune.data.tasks import TASKS, Test, suits, thin
from kprune.errors import BadSample, KpruneError, UnsupportedModel
from kprune.evaluation.causal import CausalRun, PerplexityScorer
from kprune.evaluation.change_log import Changes
from kprune.evaluation.changes import change_log
from kprune.evaluation.choices import ChoiceScorer
from kprune.evaluation.entities import EntityScorer
from kprune.evaluation.likeness import Likeness
from kprune.evaluation.metrics import Difference, Figure, difference, figure, metric_of
from kprune.evaluation.predictions import PredictionRun
from kprune.evaluation.reranking import RankingScorer
from kprune.evaluation.scorers import ModelAnswers, Scorer, scorer_for
from kprune.models.families import family_of
from kprune.models.outputs import CAUSAL_LM, CLASSIFICATION, MULTI_LABEL, REGRESSION, OutputKind, Prediction, kind_of
from kprune.runtime.computation_mode import ordinary_mode
from kprune.runtime.notebook import html_table

CLASSIFIER_KINDS = (CLASSIFICATION.name, MULTI_LABEL.name, REGRESSION.name)
TABLE_SCORERS = {Passages: RankingScorer, TaggedWords: EntityScorer}
"""Scorers of references that a table's columns announce, by their type."""
CHECKED_ROWS = 16
"""Rows that `check_compatible` tokenises."""


@dataclass(frozen=True)
class Evaluation:
    """A model's figures on a test, and its differences from another model where there is one."""

    test: str
    examples: int
    resampled: int
    """Units that the intervals resample: examples, or blocks of text for a language model."""
    figures: tuple[Figure, ...]
    """The model's figures; empty without references."""
    against: tuple[Figure, ...] = ()
    """The other model's figures."""
    differences: tuple[Difference, ...] = ()
    """The model's figures minus the other model's, on the same examples."""
    fidelity: tuple[Figure, ...] = ()
    """How alike the two models' outputs are, right or wrong; the first figure is 100 for equal outputs."""
    notes: tuple[str, ...] = ()
    padding: float = 0.0
    """Share of the tokens that were padding."""
    seconds: float = 0.0
    forward_seconds: float = 0.0
    """Seconds in the models' forward passes, included in `seconds`."""
    changes: Changes | None = None
    """Examples with another answer, if they were asked for; not in the JSON, as they have the user's texts."""

    @property
    def has_intervals(self) -> bool:
        """Whether there are examples to resample; one example has an interval of no width."""
        return self.resampled > 1

    @property
    def drop(self) -> Difference | Figure:
        """The loss in points: of the main metric, or of likeness to the other model without references.

        It is positive where the model is worse than the other; so is its interval.
        """
        if self.differences:
            change: Difference | Figure = self.differences[0]
            sign = -1.0 if metric_of(change.name).larger_is_better else 1.0
            low, high = sorted((sign * change.low, sign * change.high))
            return replace(change, value=sign * change.value, low=low, high=high)
        if not self.fidelity:
            raise KpruneError("a drop needs a second model; evaluate with `against`.")
        alike = self.fidelity[0]
        return replace(alike, value=100 - alike.value, low=100 - alike.high, high=100 - alike.low)

    def as_json(self) -> dict[str, Any]:
        """The fields as plain types, without the changed examples."""
        values = asdict(self)
        del values["changes"]
        return values

    def changes_as_json(self) -> dict[str, Any] | None:
        """The changed examples as plain types."""
        return None if self.changes is None else asdict(self.changes)

    def _repr_html_(self) -> str:
        """A table for notebooks: figures with intervals, differences and likeness."""

        def number(each: Figure | Difference, form: str) -> str:
            interval = f" ({each.low:{form}} to {each.high:{form}})" if self.has_intervals else ""
            return f"{each.value:{form}}{interval}"

        caption = f"{self.test}, {self.examples:,} example{'s' * (self.examples != 1)}"
        headings = ("metric", "model", "other", "difference", "p") if self.fidelity else ("metric", "model")
        rows = [[figure.name, number(figure, ".4g")] for figure in self.figures]
        for row, theirs, gap in zip(rows, self.against, self.differences, strict=False):
            row += [number(theirs, ".4g"), number(gap, "+.3g"), f"{gap.p_value:.3f}"]
        rows += [[f"{alike.name}, model with other", number(alike, ".4g"), "", "", ""] for alike in self.fidelity]
        return html_table(caption, headings, rows, self.notes)

    def card_section(self) -> str:
        """Markdown for the model card: the losses of this model against the dense model."""
        if not self.fidelity:
            raise KpruneError("a card section needs a second model; evaluate with `against`.")

        def interval(low: str, high: str) -> str:
            return f" ({low} to {high})" if self.has_intervals else ""

        alike = [
            f"{each.name} {each.value:.4g}" + interval(f"{each.low:.4g}", f"{each.high:.4g}") for each in self.fidelity
        ]
        intervals = ", with 95 % intervals" if self.has_intervals else ", too few for intervals"
        lines = [
            "## What was lost",
            "",
            f"Measured on {self.examples:,} example{'s' * (self.examples != 1)} of {self.test}{intervals}. Likeness of "
            "the outputs to",
            f"the dense model's: {'; '.join(alike)}.",
            "",
        ]
        rows = [
            f"| {ours.name} | {ours.value:.2f}{interval(f'{ours.low:.2f}', f'{ours.high:.2f}')} | {theirs.value:.2f} | "
            f"{gap.value:+.2f}{interval(f'{gap.low:+.2f}', f'{gap.high:+.2f}')} | {gap.p_value:.3f} |"
            for ours, theirs, gap in zip(self.figures, self.against, self.differences, strict=True)
        ]
        if rows:
            lines += ["| metric | pruned | dense | difference | p |", "|---|---|---|---|---|", *rows, ""]
        return "\n".join(lines) + "\n"


@ordinary_mode()
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
    most_changes: int = 0,
    progress: Callable[[float], None] = lambda fraction: None,
) -> Evaluation:
    """The model's figures on a test with 95 % intervals; with `against`, also differences, p-values and likeness.

    A test without references needs `against`. `pooling` is used for bare encoders only; `against_pooling` is the
    second model's, where it differs. `recalled` caches the predictions of `against` by batch: pass the same dictionary,
    empty at first, to all evaluations of one test against one model. `most_changes`: examples with another answer that
    are kept. `progress` gets the share of the work done. For
    models of images or sounds, `tokenizer` is the image processor or the feature extractor.
    """
    started = perf_counter()
    models = [model] if against is None else [model, against]
    _require_models(models)
    kind = kind_of(model, pooling=pooling)
    kinds = [kind, kind_of(against or model, pooling=against_pooling or pooling)]
    scorer = _make_scorer(models, tokenizer, test, kind, max_length)
    require_relevant(test.references, test.name)
    metrics = _choose_metrics(test, scorer, model)
    answers = [scorer.new_answers(each.config) for each in models]
    likeness = Likeness(kind, len(scorer.examples))
    log = change_log(kind.name if most_changes else "", test, model.config, scorer.examples, tokenizer)
    run_class = CausalRun if kind.name == CAUSAL_LM.name else PredictionRun
    run = run_class(models, kinds, scorer.examples, recalled)
    for batch, predictions in run.results(progress):
        for answer, prediction in zip(answers, predictions, strict=True):
            answer.add(prediction, batch)
        if against is not None:
            likeness.add(*predictions)
            log.add(*predictions)
    examples, resampled = scorer.sizes(len(test.rows))
    evaluation = Evaluation(
        test=test.name,
        examples=examples,
        resampled=resampled,
        figures=_figures(metrics, answers[0]),
        padding=run.padding,
        forward_seconds=run.forward_seconds,
    )
    if against is not None:
        evaluation = replace(
            evaluation,
            against=_figures(metrics, answers[1]),
            differences=_differences(metrics, *answers),
            fidelity=likeness.figures(),
            changes=log.changes(most_changes, answers),
        )
    notes = (*_notes(answers), *likeness.notes(class_names(model.config)))
    return replace(evaluation, notes=notes, seconds=perf_counter() - started)


def check_compatible(model: PreTrainedModel, tokenizer: Any, test: Test, *, pooling: str = "mean") -> None:
    """Raise if the model cannot be scored on this test; reads every label but tokenises only a few rows."""
    kind = kind_of(model, pooling=pooling)
    training_labels(test, kind.name, model.config)
    require_relevant(test.references, test.name)
    scorer = _make_scorer([model, model], tokenizer, thin(test, CHECKED_ROWS), kind, None)
    _choose_metrics(test, scorer, model)
    scorer.new_answers(model.config)


def _figures(metrics: Sequence[str], answers: ModelAnswers) -> tuple[Figure, ...]:
    return tuple(figure(name, *answers.columns(name)) for name in metrics)


def _differences(metrics: Sequence[str], ours: ModelAnswers, theirs: ModelAnswers) -> tuple[Difference, ...]:
    return tuple(difference(name, *ours.columns(name), theirs.columns(name)[1]) for name in metrics)


def _notes(answers: Sequence[ModelAnswers]) -> tuple[str, ...]:
    """All notes without duplicates, in order."""
    return tuple(dict.fromkeys(note for answer in answers for note in answer.notes))


def _make_scorer(
    models: Sequence[PreTrainedModel], tokenizer: Any, test: Test, kind: OutputKind, max_length: int | None
) -> Scorer:
    """A scorer whose inputs fit all models."""
    if not isinstance(test, Test):
        raise BadSample(f"a model is evaluated on a Test, not on a {type(test).__name__}; make one with read_test.")
    if not test.rows:
        raise BadSample(f"{test.name} has no rows; pass at least one.")
    _require_kind(test, kind, models[0])
    if len(models) > 1:
        _require_comparable(kind, *models)
    elif test.references is None and not kind.is_vocabulary:
        raise KpruneError(
            f"{test.name} has no right answers; name the column that has them (--label-column), "
            "or compare with the dense model (--against)."
        )
    inputs = family_of(models[0].config).inputs
    if inputs in MEDIA:
        reader = reader_of(tokenizer, inputs).for_model(models[0], max_length)
        return scorer_for(test, kind.name, reader, 0)
    require_fit(tokenizer, models[0].config, f"the {type(models[0]).__name__}")
    _require_padding(models, kind)
    limits = [longest_input(tokenizer, model.config) for model in models]
    if max_length is not None:
        limits.append(whole_number("max_length", max_length, "128"))
        require_room(test.rows[:1], tokenizer, limits[-1])
    is_perplexity = kind.name == CAUSAL_LM.name and test.references is None
    if not is_perplexity and (test.windows.length or test.windows.stride):
        raise KpruneError(
            f"{test.name} is not cut into windows: they are for the perplexity of causal language models; leave the "
            "window and the stride out."
        )
    own = TABLE_SCORERS.get(type((test.references or (None,))[0]))
    if own is not None:
        return own(test, tokenizer, min(limits), kind.name)
    if kind.name == CAUSAL_LM.name:
        scorer = PerplexityScorer if is_perplexity else ChoiceScorer
        return scorer(test, tokenizer, min(limits))
    return scorer_for(test, kind.name, tokenizer, min(limits))


def _require_padding(models: Sequence[PreTrainedModel], kind: OutputKind) -> None:
    """Raise if a classifier on a decoder cannot find the last token of a padded text."""
    for model in models:
        has_pad = getattr(model.config, "pad_token_id", None) is not None
        if not has_pad and kind.name in CLASSIFIER_KINDS and family_of(model.config).has_cache:
            raise UnsupportedModel(
                f"the config of the {type(model).__name__} has no pad_token_id, by which it finds the last token of a "
                "text; set model.config.pad_token_id, such as to tokenizer.eos_token_id."
            )


def _require_models(models: Sequence[Any]) -> None:
    for model in models:
        if not isinstance(model, PreTrainedModel):
            raise UnsupportedModel(
                f"cannot evaluate a {type(model).__name__}; pass a transformers model (of a Pruned, its model)."
            )


def _require_kind(test: Test, kind: OutputKind, model: PreTrainedModel) -> None:
    """Raise if the test is for another kind of model."""
    if suits(test.kind, kind.name):
        return
    task = TASKS.get(test.name)
    alternatives = [
        row.name
        for row in TASKS.values()
        if task and row.kind == kind.name and (row.source, row.subset) == (task.source, task.subset)
    ]
    remedy = f"use the task {alternatives[0]}" if alternatives else "pass a model that was fine-tuned for it"
    raise KpruneError(
        f"the model is made for {kind.name} ({type(model).__name__}), and {test.name} for {test.kind}; {remedy}."
    )


def _require_comparable(kind: OutputKind, model: PreTrainedModel, against: PreTrainedModel) -> None:
    """Raise if the two models' outputs on one input cannot be compared."""
    other = kind_of(against)
    if other.name != kind.name:
        raise KpruneError(f"the models are of two kinds, {kind.name} and {other.name}; compare models of one kind.")
    ours, theirs = model.config, against.config
    if "classification" in kind.name and ours.id2label != theirs.id2label:
        raise KpruneError(
            f"the models' classes differ ({ours.id2label} and {theirs.id2label}); give both the same id2label."
        )
    sizes = [getattr(each, "vocab_size", None) for each in (ours, theirs)]
    if sizes[0] != sizes[1]:
        raise KpruneError(
            f"the models' vocabularies have {sizes[0]} and {sizes[1]} tokens, so they cannot share a "
            "tokenizer; compare models with the same vocabulary."
        )


def _choose_metrics(test: Test, scorer: Scorer, model: PreTrainedModel) -> tuple[str, ...]:
    """Names of the metrics to compute: the test's, or the scorer's default."""
    if test.metrics and not scorer.metrics:
        raise KpruneError(
            f"{test.name} has no right answers, so {test.metrics[0]} cannot be computed; name the column that has them."
        )
    has_two = scorer.metrics[:1] in (("spearman",), ("answer-f1",), RANKING_METRICS[:1])
    default = scorer.metrics[:2] if has_two else scorer.metrics[:1]
    chosen = test.metrics or default
    if (model.config.num_labels or 0) > 2:  # plain F1 is defined for two classes
        chosen = tuple("macro-f1" if name == "f1" else name for name in chosen)
    chosen = tuple(dict.fromkeys(chosen))  # figures and differences are matched by name
    for name in chosen:
        if metric_of(name).name not in scorer.metrics:
            raise KpruneError(
                f"the metric {name!r} does not suit the model and its labels; use {', '.join(scorer.metrics)}."
            )
    return chosen
