"""Which of the planned runs of `benchmarks/paper.py` there are, which a method refuses, and which are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kprune.jobs.results import read_runs
from kprune.report.comparison_runs import Run

REFUSAL = "cannot reach a reduction"
"""The words by which a method refuses a reduction that it can never reach."""


@dataclass(frozen=True)
class Found:
    """The runs of a part, and the cells that a method refused: task, method, reduction."""

    runs: list[Run]
    refused: set[tuple[str, str, float]]

    def __add__(self, other: Found) -> Found:
        return Found(self.runs + other.runs, self.refused | other.refused)


def found_in(path: Path, pieces: Sequence[Any]) -> Found:
    """The runs of a file that are planned; trials, with another sample or a limited test, are left out.

    Of a task whose model changed, only the runs of the last model count.
    """
    planned = set(cells_of(pieces))
    lines = [run for run in read_runs(path) if cell_of(run) in planned and run["limit"] is None]
    source = {run["task"]: run.get("source") for run in lines}
    lines = [run for run in lines if run.get("source") == source[run["task"]]]
    return Found([run for run in lines if "error" not in run], refused_cells(lines))


def refused_cells(lines: Sequence[Run]) -> set[tuple[str, str, float]]:
    """Task, method and reduction of the lines in which a method says that it cannot go so far; others may pass."""
    return {(line["task"], line["method"], line["reduction"]) for line in lines if REFUSAL in line.get("error", "")}


def cells_of(pieces: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Task, method, reduction, seed and tokens of every planned run."""
    return [
        (task, method, reduction, seed, piece.tokens)
        for piece in pieces
        for task in piece.tasks
        for method in piece.methods
        for reduction in piece.reductions
        for seed in piece.seeds
    ]


def cell_of(run: Run) -> tuple[Any, ...]:
    """What `cells_of` has of a run."""
    return tuple(run[name] for name in ("task", "method", "reduction", "seed", "tokens"))


def open_cells(found: Found, pieces: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The planned runs without a line, but for those that the method refuses."""
    done = set(map(cell_of, found.runs))
    return [cell for cell in cells_of(pieces) if cell not in done and cell[:3] not in found.refused]
