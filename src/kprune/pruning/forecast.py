"""How long a run takes and how much memory it needs, from a rehearsal of its parts on a few of its batches.

Time. A run measures its units, scores them, and refits sublayer by sublayer. Passes over batches grow with the sample;
scores and solutions of linear systems depend on the model alone:

    seconds = s·(E + m·M + R) + m·G + S

s is the sample's tokens over the rehearsal's, padding included. E, M and R are the rehearsal's seconds for embedding,
one measurement of all sublayers, and the refits of all layers; G and S are the seconds of all scores and solutions. m
counts measurements. One from sublayer i of n on passes (n − i)/n of the model, so m is the sum of (n − i)/n over the
sublayers that are measured; it is 1 for `compensated`.

Memory. The rehearsal's peaks contain everything but what grows with the sample. That is, per token beyond the
rehearsal's: k streams of width d (one while both models are equal, as they are if units are measured once; else two);
later two streams and the teacher's targets of one sublayer; and a number per sublayer that weighs the token. The
features that a refit keeps grow up to a limit. With Δ more tokens and n sublayers:

    bytes = max(loading, measuring + 4·Δ·(k·d + n), refitting + 4·Δ·(3·d + n) + features)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kprune.pruning.memory_policy import FEATURE_BYTES

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Rehearsal:
    """Seconds and peaks of a run's parts on a few batches."""

    tokens: int
    """Tokens of the batches that were timed, padding included."""
    held_tokens: int
    """Tokens whose streams were in memory, padding included."""
    embedding: float
    measuring: float
    """Seconds of a measurement of all sublayers, without the scores."""
    scoring: float
    """Seconds of the scores of all sublayers."""
    refitting: float
    """Seconds of the passes of all refits."""
    solving: float
    """Seconds of the solutions of all refits."""
    loading_bytes: float
    """Peak before the run: loading and tokenising."""
    measuring_bytes: float
    refitting_bytes: float


@dataclass(frozen=True)
class Extent:
    """The size of the run that is rehearsed."""

    tokens: int
    """Tokens of the sample, padding included."""
    width: int
    """Width of the stream."""
    sublayers: int
    features: int
    """Kept features of the widest sublayer."""
    is_measured: Sequence[bool]
    """For each sublayer, whether units are measured before it is pruned."""
    keeps_streams: bool = True
    """Whether streams are in memory, not on a disk."""
    keeps_top: bool = False
    """Whether the last stream is kept too, as for language models."""


@dataclass(frozen=True)
class Forecast:
    """What a run will take."""

    seconds: float
    measuring_seconds: float
    refitting_seconds: float
    megabytes: float
    """Peak memory of the process."""


def forecast(rehearsal: Rehearsal, extent: Extent) -> Forecast:
    """The time and the memory of a run, by the formulas above."""
    scale = extent.tokens / rehearsal.tokens
    passes = measurements(extent.is_measured)
    measuring = passes * (scale * rehearsal.measuring + rehearsal.scoring)
    refitting = scale * (rehearsal.embedding + rehearsal.refitting) + rehearsal.solving
    return Forecast(measuring + refitting, measuring, refitting, _bytes(rehearsal, extent) / 2**20)


def removed_range(kinds: Sequence[tuple[float, float]], price: float) -> tuple[float, float]:
    """The least and the most of an amount, such as parameters, that leaves with units of a total price.

    `kinds` has the price and the amount of all units of a kind; which of them leave is not known before.
    """
    ends = []
    for sign in (1, -1):
        left, amount = price, 0.0
        for cost, total in sorted(kinds, key=lambda kind: sign * kind[1] / kind[0]):
            spent = min(left, cost)
            left, amount = left - spent, amount + total * spent / cost
        ends.append(amount)
    return ends[0], ends[1]


def measurements(is_measured: Sequence[bool]) -> float:
    """m: measurements in units of one that passes through all sublayers."""
    n = len(is_measured)
    return sum((n - i) / n for i, measured in enumerate(is_measured) if measured)


def _bytes(rehearsal: Rehearsal, extent: Extent) -> float:
    more = max(0, extent.tokens - rehearsal.held_tokens)
    stream = FLOAT_BYTES * extent.width * extent.keeps_streams
    weights = FLOAT_BYTES * extent.sublayers if any(extent.is_measured) else 0
    top = stream * extent.keeps_top
    streams = 2 if sum(extent.is_measured) > 1 else 1
    measuring = rehearsal.measuring_bytes + more * (streams * stream + top + weights)
    feature = FLOAT_BYTES * extent.features
    cached = min(FEATURE_BYTES, extent.tokens * feature) - min(FEATURE_BYTES, rehearsal.held_tokens * feature)
    refitting = rehearsal.refitting_bytes + more * (3 * stream + top + weights) + max(0, cached)
    return max(rehearsal.loading_bytes, measuring if any(extent.is_measured) else 0.0, refitting)
