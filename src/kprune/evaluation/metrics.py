"""Metrics over examples, with bootstrap intervals and a paired significance test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kprune.errors import KpruneError

Array = NDArray[Any]
Score = Callable[[Array, Array, Array], float]
"""A metric from references, predictions, and the number of times that each example counts."""

DRAWS = 1000
"""Random draws of the bootstrap and of the randomisation test."""


CLASSES, CHOICES, VALUES, ANSWERS = "classes", "choices", "values", "answers"
TOKENS, LIKENESS, RANKINGS, ENTITIES = "tokens", "likeness", "rankings", "entities"
"""What a metric scores; the scorers of `kprune.evaluation.scorers` offer the metrics of their kind."""


@dataclass(frozen=True)
class Metric:
    """A metric: its name, its function, what it scores, and its direction."""

    name: str
    score: Score
    scores: str
    larger_is_better: bool = True
    is_counted: bool = False
    """Whether the metric counts right answers; then no error among n examples only bounds the error rate by 3/n."""
    standardise: Callable[[Array], Array] = lambda predictions: predictions
    """Removes the scale that the metric ignores, so that two models' predictions can be exchanged."""


@dataclass(frozen=True)
class Figure:
    """A measured figure and its 95 % bootstrap interval over examples."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """One model's figure minus another's on the same examples; the p-value is of the paired randomisation test."""

    name: str
    value: float
    low: float
    high: float
    p_value: float

    @property
    def is_noise(self) -> bool:
        """Whether the difference is not significant at the 5 % level."""
        return self.p_value > 0.05


# Own accuracy and F1: the bootstrap calls them thousands of times, and scikit-learn's input checks are slow.


def _accuracy(references: Array, predictions: Array, counts: Array) -> float:
    return 100.0 * float(np.average(references == predictions, weights=counts))


def _class_f1(number: int, references: Array, predictions: Array, counts: Array) -> float:
    """F1 of one class: 2·hits / (chosen + right); 0 for a class that occurs in neither."""
    chosen, right = predictions == number, references == number
    both = counts[chosen].sum() + counts[right].sum()
    return float(2.0 * counts[chosen & right].sum() / both) if both else 0.0


def _f1(references: Array, predictions: Array, counts: Array) -> float:
    """F1 of the second of two classes, in percent."""
    return 100.0 * _class_f1(1, references, predictions, counts)


def _macro_f1(references: Array, predictions: Array, counts: Array) -> float:
    """The mean F1 over the classes that occur, in percent."""
    classes = np.union1d(references, predictions)
    return 100.0 * float(np.mean([_class_f1(number, references, predictions, counts) for number in classes]))


def _matthews(references: Array, predictions: Array, counts: Array) -> float:
    from sklearn.metrics import matthews_corrcoef

    if len(np.union1d(references, predictions)) < 2:  # a constant correlates with nothing
        return 0.0
    return 100.0 * float(matthews_corrcoef(references, predictions, sample_weight=counts))


def _spearman(references: Array, predictions: Array, counts: Array) -> float:
    from scipy.stats import spearmanr

    return _correlation(spearmanr, references, predictions, counts)


def _pearson(references: Array, predictions: Array, counts: Array) -> float:
    from scipy.stats import pearsonr

    return _correlation(pearsonr, references, predictions, counts)


def _correlation(function: Callable[..., Any], references: Array, predictions: Array, counts: Array) -> float:
    references, predictions = np.repeat(references, counts), np.repeat(predictions, counts)
    if np.ptp(references) == 0.0 or np.ptp(predictions) == 0.0:  # a constant correlates with nothing
        return 0.0
    return 100.0 * float(function(references, predictions).statistic)


def _ranks(predictions: Array) -> Array:
    from scipy.stats import rankdata

    return np.asarray(rankdata(predictions))


def _standard_scores(predictions: Array) -> Array:
    spread = predictions.std()
    return np.asarray((predictions - predictions.mean()) / (spread if spread > 0 else 1.0))


def _mean(references: Array, predictions: Array, counts: Array) -> float:
    """The mean of per-example figures; `references` is not used."""
    return float(np.average(predictions, weights=counts))


def _percent(references: Array, predictions: Array, counts: Array) -> float:
    return 100.0 * _mean(references, predictions, counts)


def _share(references: Array, predictions: Array, counts: Array) -> float:
    """The share of items that count, in percent: `predictions` count those, `references` all items of an example."""
    return 100.0 * float(np.sum(counts * predictions) / np.sum(counts * references))


def _perplexity(references: Array, predictions: Array, counts: Array) -> float:
    """exp(summed loss / tokens): `predictions` are the examples' summed losses, `references` their token counts."""
    return float(np.exp(np.sum(counts * predictions) / np.sum(counts * references)))


PACKED = 2**20
"""More than the entities of an example."""


def packed(found: Array, right: Array) -> Array:
    """The entities that a model found in each example, and how many of them are right, in one exact number."""
    return np.asarray(found * float(PACKED) + right)


def _entity_counts(references: Array, predictions: Array, counts: Array) -> tuple[float, float, float]:
    """Entities of the references, found ones and right ones, in all examples."""
    found, right = np.divmod(predictions, PACKED)
    return tuple(float(np.sum(counts * each)) for each in (references, found, right))  # type: ignore[return-value]


def _entity_f1(references: Array, predictions: Array, counts: Array) -> float:
    """2 · right / (found + expected), over the entities of all examples together, in percent."""
    expected, found, right = _entity_counts(references, predictions, counts)
    return 200.0 * right / (expected + found) if right else 0.0


def _entity_precision(references: Array, predictions: Array, counts: Array) -> float:
    _, found, right = _entity_counts(references, predictions, counts)
    return 100.0 * right / found if right else 0.0


def _entity_recall(references: Array, predictions: Array, counts: Array) -> float:
    expected, _, right = _entity_counts(references, predictions, counts)
    return 100.0 * right / expected if right else 0.0


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", _accuracy, CLASSES, is_counted=True),
        Metric("f1", _f1, CLASSES, is_counted=True),
        Metric("macro-f1", _macro_f1, CLASSES, is_counted=True),
        Metric("matthews", _matthews, CLASSES, is_counted=True),
        Metric("spearman", _spearman, VALUES, standardise=_ranks),
        Metric("pearson", _pearson, VALUES, standardise=_standard_scores),
        Metric("answer-f1", _percent, ANSWERS, is_counted=True),
        Metric("exact-match", _percent, ANSWERS, is_counted=True),
        Metric("accuracy-norm", _accuracy, CHOICES, is_counted=True),
        Metric("ndcg@10", _percent, RANKINGS, is_counted=True),
        Metric("mrr@10", _percent, RANKINGS, is_counted=True),
        Metric("entity-f1", _entity_f1, ENTITIES, is_counted=True),
        Metric("entity-precision", _entity_precision, ENTITIES, is_counted=True),
        Metric("entity-recall", _entity_recall, ENTITIES, is_counted=True),
        Metric("perplexity", _perplexity, TOKENS, larger_is_better=False),
        Metric("agreement", _percent, LIKENESS, is_counted=True),
        Metric("share", _share, LIKENESS),
        Metric("cosine", _percent, LIKENESS),
        Metric("divergence", _mean, LIKENESS, larger_is_better=False),
        Metric("squared-error", _mean, LIKENESS, larger_is_better=False),
    )
}


def metrics_of(scores: str) -> tuple[str, ...]:
    """Names of the metrics for what they score, the usual one first."""
    return tuple(metric.name for metric in METRICS.values() if metric.scores == scores)


def metric_of(name: str) -> Metric:
    """The metric with this name."""
    if name not in METRICS:
        raise KpruneError(f"there is no metric {name!r}; use one of {', '.join(METRICS)}.")
    try:
        import scipy  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        raise KpruneError("metrics need the extra: pip install 'kprune[data]'.") from error
    return METRICS[name]


def figure(name: str, references: Array, predictions: Array, *, seed: int = 0) -> Figure:
    """A metric over examples, with its 95 % bootstrap interval."""
    score = metric_of(name).score
    (references, predictions), counts = _distinct_examples(references, predictions)
    drawn = [_score_of_present(score, references, predictions, weights) for weights in _bootstrap_counts(counts, seed)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Figure(name, score(references, predictions, counts), float(low), float(high))


def difference(name: str, references: Array, ours: Array, theirs: Array, *, seed: int = 0) -> Difference:
    """The metric of `ours` minus that of `theirs`, with a paired bootstrap interval and a randomisation p-value.

    Under the null hypothesis, the two models' predictions for an example can be exchanged. The test exchanges each
    pair with probability ½. The p-value is the share of draws whose difference is at least as large as the real one.
    """
    metric = metric_of(name)
    (references, ours, theirs), counts = _distinct_examples(
        references, metric.standardise(ours), metric.standardise(theirs)
    )

    def gap(kept: Array, exchanged: Array) -> float:
        twice, both = np.concatenate([references, references]), np.concatenate([kept, exchanged])
        mine = _score_of_present(metric.score, twice, np.concatenate([ours, theirs]), both)
        return mine - _score_of_present(metric.score, twice, np.concatenate([theirs, ours]), both)

    none = np.zeros_like(counts)
    value = gap(counts, none)
    drawn = [gap(weights, none) for weights in _bootstrap_counts(counts, seed)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    generator = np.random.default_rng(seed)
    exchanges = [generator.binomial(counts, 0.5) for _ in range(DRAWS)]
    # The slack covers rounding: sums in another order differ in their last bits.
    as_large = sum(abs(gap(counts - moved, moved)) >= abs(value) - 1e-9 for moved in exchanges)
    return Difference(name, value, float(low), float(high), (1 + as_large) / (1 + DRAWS))


def _score_of_present(score: Score, references: Array, predictions: Array, counts: Array) -> float:
    """The score without examples whose count is 0: their classes must not enter a mean over classes."""
    present = counts > 0
    return score(references[present], predictions[present], counts[present])


def _distinct_examples(*columns: Array) -> tuple[list[Array], Array]:
    """The columns without duplicate examples, and each example's count; classes leave only a few distinct ones."""
    dtypes = [column.dtype for column in columns]
    rows, counts = np.unique(np.stack([column.astype(np.float64) for column in columns]), axis=1, return_counts=True)
    return [row.astype(dtype) for row, dtype in zip(rows, dtypes, strict=True)], counts


def _bootstrap_counts(counts: Array, seed: int) -> Sequence[Array]:
    """Counts of each example in `DRAWS` bootstrap samples of the same size."""
    generator = np.random.default_rng(seed)
    total = int(counts.sum())
    return [generator.multinomial(total, counts / total) for _ in range(DRAWS)]
