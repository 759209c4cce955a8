"""The largest reduction that costs no more than a given drop, found by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kprune.errors import KpruneError
from kprune.evaluate import Evaluation
from kprune.metrics import METRICS
from kprune.pruned import Pruned

LARGEST = 0.95
"""The largest reduction that is tried."""
RESOLUTION = 0.02
"""The search ends when this much is left between what passed and what did not."""


FEWEST = 20
"""Examples below which no interval is believed."""


@dataclass(frozen=True)
class Trial:
    """One reduction that was tried."""

    reduction: float
    drop: float
    """Points lost, by estimate."""
    low: float
    high: float
    """Ends of its 95 % interval; the upper one is not below what so many examples can rule out."""
    passed: bool


@dataclass(frozen=True)
class Found:
    """The outcome of a search."""

    pruned: Pruned
    evaluation: Evaluation
    trials: tuple[Trial, ...]
    """In the order in which they were made."""


def unseen(evaluation: Evaluation) -> float:
    """Points that could be lost though no answer changed: where none of n did, up to 3/n of all may (95 %).

    Resampling shows no spread then. Means of values that all change a little need no such floor, but some examples.
    """
    name = evaluation.drop.name
    if name in METRICS and METRICS[name].is_counted:
        return 300.0 / evaluation.resampled
    return 0.0 if evaluation.resampled >= FEWEST else math.inf


def largest_reduction(
    prune: Callable[[float], Pruned],
    examine: Callable[[Pruned], Evaluation],
    max_drop: float,
    *,
    guard: bool = True,
    tried: Callable[[Trial], None] = lambda trial: None,
) -> Found:
    """The most that can be removed with a drop of at most `max_drop` points, to a resolution of 0.02.

    `prune` gives one model with a share removed, `examine` compares it with the dense one, `tried` hears of each trial.
    With `guard`, the upper end of the drop's 95 % interval must stay within `max_drop`, not only the estimate: a small
    test then permits less, since it knows less. Bisection takes it that more removed is more lost; where noise breaks
    this, what is returned still passed.
    """
    if not max_drop > 0:
        raise KpruneError(f"max_drop is {max_drop}, and must be above 0: 1.0 allows one point.")
    good, bad = 0.0, LARGEST + RESOLUTION
    best: tuple[Pruned, Evaluation] | None = None
    trials: list[Trial] = []
    while bad - good > RESOLUTION:
        reduction = round((good + bad) / 2, 3)
        pruned = prune(reduction)
        evaluation = examine(pruned)
        drop = evaluation.drop
        high = max(drop.high, unseen(evaluation))
        if guard and unseen(evaluation) > max_drop:
            raise KpruneError(
                f"{evaluation.resampled} examples cannot rule out a drop of {max_drop:g} points: "
                f"test on {math.ceil(300.0 / max_drop):,} or more, allow a larger drop, or pass --no-guard."
            )
        passed = (high if guard else drop.value) <= max_drop
        trials.append(Trial(reduction, drop.value, drop.low, high, passed))
        tried(trials[-1])
        if passed:
            good, best = reduction, (pruned, evaluation)
        else:
            bad = reduction
    if best is None:
        raise KpruneError(
            f"not even {trials[-1].reduction:.1%} removed stay within a drop of {max_drop:g} points "
            f"({'by the upper end of the interval' if guard else 'by estimate'}); allow a larger drop, "
            "or test on more rows."
        )
    return Found(*best, tuple(trials))
