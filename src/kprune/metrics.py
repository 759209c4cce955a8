"""How good a model's answers are, with intervals and a test that tell a difference from noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kprune.errors import KpruneError

Array = NDArray[Any]
Score = Callable[[Array, Array, Array], float]
"""A figure from references, predictions and how often each of them counts (whole numbers)."""

DRAWS = 1000
"""Of the bootstrap and of the randomisation test."""


@dataclass(frozen=True)
class Metric:
    """A way to score, and how its figure is told."""

    name: str
    score: Score
    larger_is_better: bool = True
    is_counted: bool = False
    """Whether it counts right answers, so that none wrong among n says little of less than 3/n."""
    plain: Callable[[Array], Array] = lambda predictions: predictions
    """Predictions without the scale that the score does not see, so that two models' can be exchanged."""


@dataclass(frozen=True)
class Figure:
    """A measured figure and its 95 % bootstrap interval over examples."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """One model's figure less another's on the same examples, and how likely noise alone makes one as large."""

    name: str
    value: float
    low: float
    high: float
    p_value: float

    @property
    def is_noise(self) -> bool:
        return self.p_value > 0.05


# Accuracy and F1 are a few sums, taken thousands of times: scikit-learn's own checks would take most of an evaluation.


def _accuracy(references: Array, predictions: Array, counts: Array) -> float:
    return 100.0 * float(np.average(references == predictions, weights=counts))


def _class_f1(number: int, references: Array, predictions: Array, counts: Array) -> float:
    """2·hits / (chosen + right) of one class; 0 where it is never chosen and never right."""
    chosen, right = predictions == number, references == number
    both = counts[chosen].sum() + counts[right].sum()
    return float(2.0 * counts[chosen & right].sum() / both) if both else 0.0


def _f1(references: Array, predictions: Array, counts: Array) -> float:
    """Of the second of two classes."""
    return 100.0 * _class_f1(1, references, predictions, counts)


def _macro_f1(references: Array, predictions: Array, counts: Array) -> float:
    """The mean over the classes that occur."""
    classes = np.union1d(references, predictions)
    return 100.0 * float(np.mean([_class_f1(number, references, predictions, counts) for number in classes]))


def _matthews(references: Array, predictions: Array, counts: Array) -> float:
    from sklearn.metrics import matthews_corrcoef

    if len(np.union1d(references, predictions)) < 2:  # nothing varies, so nothing goes together
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
    if np.ptp(references) == 0.0 or np.ptp(predictions) == 0.0:  # nothing varies, so nothing goes together
        return 0.0
    return 100.0 * float(function(references, predictions).statistic)


def _ranks(predictions: Array) -> Array:
    from scipy.stats import rankdata

    return np.asarray(rankdata(predictions))


def _standardised(predictions: Array) -> Array:
    spread = predictions.std()
    return np.asarray((predictions - predictions.mean()) / (spread if spread > 0 else 1.0))


def _mean(references: Array, predictions: Array, counts: Array) -> float:
    """Of figures that belong to one example each; there is nothing left to compare them with."""
    return float(np.average(predictions, weights=counts))


def _percent(references: Array, predictions: Array, counts: Array) -> float:
    return 100.0 * _mean(references, predictions, counts)


def _perplexity(references: Array, predictions: Array, counts: Array) -> float:
    """exp of the mean surprise per token: `predictions` are sums over examples' tokens, `references` their numbers."""
    return float(np.exp(np.sum(counts * predictions) / np.sum(counts * references)))


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", _accuracy, is_counted=True),
        Metric("f1", _f1, is_counted=True),
        Metric("macro-f1", _macro_f1, is_counted=True),
        Metric("matthews", _matthews, is_counted=True),
        Metric("spearman", _spearman, plain=_ranks),
        Metric("pearson", _pearson, plain=_standardised),
        Metric("exact-match", _percent, is_counted=True),
        Metric("answer-f1", _percent, is_counted=True),
        Metric("perplexity", _perplexity, larger_is_better=False),
        Metric("agreement", _percent, is_counted=True),
        Metric("cosine", _percent),
        Metric("divergence", _mean, larger_is_better=False),
        Metric("squared-error", _mean, larger_is_better=False),
    )
}


def metric_of(name: str) -> Metric:
    """The metric of a name."""
    if name not in METRICS:
        raise KpruneError(f"there is no metric {name!r}; use one of {', '.join(METRICS)}.")
    try:
        import scipy  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        raise KpruneError("metrics need the extra: pip install 'kprune[data]'.") from error
    return METRICS[name]


def figure(name: str, references: Array, predictions: Array, *, seed: int = 0) -> Figure:
    """A metric over examples, with the interval that resampling them gives."""
    score = metric_of(name).score
    (references, predictions), counts = _cells(references, predictions)
    drawn = [_counted(score, references, predictions, weights) for weights in _resampled(counts, seed)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Figure(name, score(references, predictions, counts), float(low), float(high))


def difference(name: str, references: Array, ours: Array, theirs: Array, *, seed: int = 0) -> Difference:
    """How much better `ours` is than `theirs`: the interval by resampling pairs, the p-value by exchanging them.

    If the two models were equal, exchanging their answers to any example would change nothing but by chance: the
    p-value is the share of such exchanges, each made with probability ½, with a difference as large as the real one.
    """
    metric = metric_of(name)
    (references, ours, theirs), counts = _cells(references, metric.plain(ours), metric.plain(theirs))

    def gap(kept: Array, exchanged: Array) -> float:
        twice, both = np.concatenate([references, references]), np.concatenate([kept, exchanged])
        mine = _counted(metric.score, twice, np.concatenate([ours, theirs]), both)
        return mine - _counted(metric.score, twice, np.concatenate([theirs, ours]), both)

    none = np.zeros_like(counts)
    value = gap(counts, none)
    drawn = [gap(weights, none) for weights in _resampled(counts, seed)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    generator = np.random.default_rng(seed)
    exchanges = [generator.binomial(counts, 0.5) for _ in range(DRAWS)]
    # A hair's breadth of slack: sums in another order differ by rounding.
    as_large = sum(abs(gap(counts - moved, moved)) >= abs(value) - 1e-9 for moved in exchanges)
    return Difference(name, value, float(low), float(high), (1 + as_large) / (1 + DRAWS))


def _counted(score: Score, references: Array, predictions: Array, counts: Array) -> float:
    """The score of those that count at all: a class that only others have must not weigh in."""
    there = counts > 0
    return score(references[there], predictions[there], counts[there])


def _cells(*columns: Array) -> tuple[list[Array], Array]:
    """Distinct rows, column by column, and how many examples are like each: few where answers are classes."""
    kinds = [column.dtype for column in columns]
    rows, counts = np.unique(np.stack([column.astype(np.float64) for column in columns]), axis=1, return_counts=True)
    return [row.astype(kind) for row, kind in zip(rows, kinds, strict=True)], counts


def _resampled(counts: Array, seed: int) -> Sequence[Array]:
    """Counts of as many examples drawn with replacement, again and again."""
    generator = np.random.default_rng(seed)
    total = int(counts.sum())
    return [generator.multinomial(total, counts / total) for _ in range(DRAWS)]
