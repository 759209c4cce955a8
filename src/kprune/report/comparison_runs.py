"""Runs of a comparison's results file: reading, filtering, grouping, averaging over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from kprune.errors import KpruneError
from kprune.jobs.grid import parse_method
from kprune.jobs.results import read_runs

Run = dict[str, Any]
"""One line of the results file."""
ALLOWED_LOSS = 3.0
"""Points that the paper allows a model to lose for its best speed-up."""


def finished_runs(path: Path) -> list[Run]:
    """Return the runs that did not fail, or raise if there are none or if they are not comparable."""
    runs = [run for run in read_runs(path) if "error" not in run]
    if not runs:
        raise KpruneError(f"{path} has no finished run to draw; run kprune compare first.")
    _require_comparable(runs, path)
    return runs


def _require_comparable(runs: Sequence[Run], path: Path) -> None:
    """Raise if runs of one task differ in model, tokens or limit: their mean would have no meaning."""
    for task in {run["task"] for run in runs}:
        for name in ("model", "tokens", "limit"):
            values = {run.get(name) for run in runs if run["task"] == task}
            if len(values) > 1:
                listed = " and ".join(sorted(map(str, values)))
                raise KpruneError(f"{path} mixes runs of {task} with {name} {listed}; put them into separate files.")


def default_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs of methods without changed options."""
    return [run for run in runs if " " not in run["method"]]


def sweep_runs(runs: Sequence[Run], option: str) -> list[Run]:
    """Return the runs that change only `option`; none if it has a single value."""
    chosen = [run for run in runs if set(parse_method(run["method"])[1]) == {option}]
    return chosen if len({run["method"] for run in chosen}) > 1 else []


def by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group runs by method, in order of appearance."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run["method"], []).append(run)
    return groups


def mean_and_spread(
    runs: Iterable[Run], key: Callable[[Run], Any], value: Callable[[Run], float]
) -> dict[Any, tuple[float, float]]:
    """Return mean and standard deviation (0 for one run) of `value`, by sorted `key`."""
    groups: dict[Any, list[float]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(value(run))
    return {name: (mean(values), stdev(values) if len(values) > 1 else 0.0) for name, values in sorted(groups.items())}


def metric(run: Run) -> float:
    """Return the task's main metric."""
    return float(run["figures"][0]["value"])


def seconds_alone(runs: Sequence[Run], others: Sequence[Run] = ()) -> float:
    """Return the mean seconds of the runs that reused no other run's passes; without any, those of the other runs."""
    for group in (runs, others):
        alone = [float(run["prune_seconds"]) for run in group if not run.get("shares_passes")]
        if alone:
            return mean(alone)
    return mean(float(run["prune_seconds"]) for run in runs)


def metric_name(run: Run) -> str:
    return str(run["figures"][0]["name"])


def dense_metric(run: Run) -> float:
    """Return the dense model's main metric on the same rows."""
    return float(run["against"][0]["value"])
