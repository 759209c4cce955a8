"""The largest reduction that costs no more than a given drop, found by bisection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kprune.errors import KpruneError
from kprune.evaluate import Evaluation
from kprune.prune import Pruned, Pruner

LARGEST = 0.95
"""The largest reduction that is tried."""
RESOLUTION = 0.02
"""The search ends when this much is left between what passed and what did not."""


@dataclass(frozen=True)
class Trial:
    """One reduction that was tried."""

    reduction: float
    drop: float
    """Points lost, by estimate."""
    low: float
    high: float
    """Ends of its 95 % interval; the upper one is not below what so few examples can rule out."""
    passed: bool


@dataclass(frozen=True)
class Found:
    """The outcome of a search."""

    pruned: Pruned
    evaluation: Evaluation
    trials: tuple[Trial, ...]
    """In the order in which they were made."""


def largest_reduction(
    pruner: Pruner,
    examine: Callable[[Pruned], Evaluation],
    max_drop: float,
    *,
    guard: bool = True,
    start: Callable[[float], Callable[..., None]] = lambda reduction: lambda progress: None,
    tried: Callable[[Trial], None] = lambda trial: None,
) -> Found:
    """The most that can be removed with a drop of at most `max_drop` points, to a resolution of 0.02.

    `examine` compares a pruned model with the dense one. With `guard`, the upper end of the drop's 95 % interval must
    stay within `max_drop`, not only the estimate: a small test then permits less, since it knows less. Bisection takes
    it that more removed is more lost; where noise breaks this, what is returned still passed. `start` gives the
    progress callback of a run, `tried` hears of each trial.
    """
    if not max_drop > 0:
        raise KpruneError(f"max_drop is {max_drop}, and must be above 0: 1.0 allows one point.")
    good, bad = 0.0, LARGEST + RESOLUTION
    best: tuple[Pruned, Evaluation] | None = None
    trials: list[Trial] = []
    while bad - good > RESOLUTION:
        reduction = round((good + bad) / 2, 3)
        pruned = pruner.prune(reduction, progress=start(reduction))
        evaluation = examine(pruned)
        drop = evaluation.drop
        # Where none of n examples changed, resampling them shows no spread; yet up to 3/n of all may (95 %).
        high = max(drop.high, 300.0 / evaluation.examples)
        passed = (high if guard else drop.value) <= max_drop
        trials.append(Trial(reduction, drop.value, drop.low, high, passed))
        tried(trials[-1])
        if passed:
            good, best = reduction, (pruned, evaluation)
        else:
            bad = reduction
    if best is None:
        raise KpruneError(
            f"no reduction of {RESOLUTION:.0%} or more stays within a drop of {max_drop:g} points "
            f"({'by the upper end of the interval' if guard else 'by estimate'}); allow a larger drop, "
            "or test on more rows."
        )
    return Found(*best, tuple(trials))
