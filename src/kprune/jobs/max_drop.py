"""The largest reduction that costs no more than a given drop, found by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from kprune.errors import KpruneError
from kprune.evaluation.evaluator import Evaluation
from kprune.evaluation.metrics import METRICS
from kprune.jobs.prune_checkpoint import State, evaluate_against_dense, healed, no_progress
from kprune.pruning.result import Pruned

LARGEST = 0.95
"""The largest reduction that is tried."""
RESOLUTION = 0.02
"""The search ends when passed and failed reductions are this close."""
FEWEST = 20
"""With fewer examples no interval is trusted."""


@dataclass(frozen=True)
class Trial:
    """One reduction that was tried."""

    reduction: float
    drop: float
    """Points lost, as estimated."""
    low: float
    high: float
    """Ends of the 95 % interval; the upper end is at least what the number of examples cannot rule out."""
    passed: bool


@dataclass(frozen=True)
class Found:
    """The result of a search."""

    pruned: Pruned
    evaluation: Evaluation
    trials: tuple[Trial, ...]
    """In the order in which they were made."""


@dataclass(frozen=True)
class PruneWithinDrop:
    """A first stage of `prune_checkpoint` that removes as much as costs at most `max_drop` points on the test."""

    max_drop: float
    guard: bool = True
    tried: Callable[[Trial], None] = lambda trial: None

    def __call__(self, state: State) -> State:
        pruner = state.prepared.pruner(state.config, state.run)
        with state.show_progress() as advance:
            found = largest_reduction(
                lambda reduction: healed(state, pruner.prune(reduction, progress=advance), advance),
                lambda pruned: evaluate_against_dense(state, pruned.model, no_progress),
                self.max_drop,
                guard=self.guard,
                tried=self.tried,
                below=pruner.reachable,
            )
        details = {**state.details, "trials": [asdict(trial) for trial in found.trials]}
        return replace(state, pruned=found.pruned, evaluation=found.evaluation, details=details)


def undetectable_drop(evaluation: Evaluation) -> float:
    """Points that could be lost although no answer changed: if none of n did, up to 3/n of all may (95 %).

    Resampling shows no spread then. Means of values that all change a little need no such bound, but enough examples.
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
    below: float = 1.0,
) -> Found:
    """The largest reduction `below` a limit with a drop of at most `max_drop` points, to a resolution of 0.02.

    `prune` returns a model with a share removed, `examine` compares it with the dense one, `tried` is called after each
    trial. With `guard`, the upper end of the drop's 95 % interval must stay within `max_drop`, not only the estimate: a
    small test then permits less. Bisection assumes that a larger reduction loses more; the returned model passed.
    """
    if not max_drop > 0:
        raise KpruneError(f"max_drop is {max_drop}, but must be above 0: 1.0 allows one point.")
    good, bad = 0.0, min(LARGEST + RESOLUTION, below)
    best: tuple[Pruned, Evaluation] | None = None
    trials: list[Trial] = []
    while bad - good > RESOLUTION:
        reduction = round((good + bad) / 2, 3)
        pruned = prune(reduction)
        evaluation = examine(pruned)
        if guard:
            _require_enough_examples(evaluation, max_drop)
        trials.append(_trial(reduction, evaluation, max_drop, guard))
        tried(trials[-1])
        if trials[-1].passed:
            good, best = reduction, (pruned, evaluation)
        else:
            bad = reduction
    if best is None:
        raise KpruneError(
            f"not even a reduction of {trials[-1].reduction:.1%} stays within a drop of {max_drop:g} points "
            f"({'by the upper end of the interval' if guard else 'by estimate'}); allow a larger drop, "
            "or test on more rows."
        )
    return Found(*best, tuple(trials))


def _trial(reduction: float, evaluation: Evaluation, max_drop: float, guard: bool) -> Trial:
    drop = evaluation.drop
    high = max(drop.high, undetectable_drop(evaluation))
    return Trial(reduction, drop.value, drop.low, high, (high if guard else drop.value) <= max_drop)


def _require_enough_examples(evaluation: Evaluation, max_drop: float) -> None:
    if undetectable_drop(evaluation) > max_drop:
        raise KpruneError(
            f"{evaluation.resampled} examples cannot rule out a drop of {max_drop:g} points: "
            f"test on {math.ceil(300.0 / max_drop):,} or more, allow a larger drop, or pass --no-guard."
        )
