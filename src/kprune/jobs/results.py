"""The results file of a comparison: one JSON line per finished cell."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from kprune.errors import KpruneError
from kprune.jobs.grid import Cell, Grid

Line = dict[str, Any]
REQUIRED = tuple(each.name for each in fields(Cell) if each.name != "source")
"""Fields that every line has; `source` is new in version 0.2."""


def read_results(path: Path) -> list[dict[str, Any]]:
    """The lines of a results file; a last line that a crash cut short is skipped."""
    if not path.exists():
        return []
    if not path.is_file():
        raise KpruneError(f"{path} is not a file; name a file for the results, such as results.jsonl.")
    lines = path.read_text("utf-8").split("\n")
    results = []
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            results.append(json.loads(line))
        except ValueError as error:
            if number == len(lines) - 1:  # without a line break it was never finished
                continue
            raise KpruneError(f"{path}, line {number + 1}, is not JSON; correct it or delete it.") from error
    return results


def read_runs(path: Path) -> list[dict[str, Any]]:
    """The last line of each cell in a results file, all lines of which must be runs.

    A cell that failed is run again, and its new line replaces the error.
    """
    results = read_results(path)
    for number, line in enumerate(results):
        if not isinstance(line, dict) or not set(REQUIRED) <= set(line) or not {"figures", "error"} & set(line):
            raise KpruneError(f"{path}, line {number + 1}, is not a run of kprune compare; delete it.")
    last: dict[tuple[Any, ...], Line] = {}
    kept: list[Line] = []
    for line in results:
        key = identity(line)
        if key in last and "error" in last[key]:
            kept.remove(last[key])
        last[key] = line
        kept.append(line)
    return kept


def append_result(path: Path, line: dict[str, Any]) -> None:
    """Append a complete line and flush it to disk; other processes may append at the same time."""
    content = (json.dumps(line) + "\n").encode()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        end = os.lseek(descriptor, 0, os.SEEK_END)
        if end and os.pread(descriptor, 1, end - 1) != b"\n":  # a crash cut the last line short
            end = os.pread(descriptor, end, 0).rfind(b"\n") + 1
            os.ftruncate(descriptor, end)
        os.pwrite(descriptor, content, end)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def grid_cells(grid: Grid, runs: Sequence[Line]) -> list[Cell]:
    """The grid's cells; a model has the label that it has in the file, or one that no other model there has."""
    known = {line["source"]: line["model"] for line in runs if line.get("source")}
    taken = set(known.values())

    def label(cell: Cell) -> str:
        return str(known.get(cell.source, cell.source if cell.model in taken else cell.model))

    return [replace(cell, model=label(cell)) for cell in grid.cells()]


def grid_lines(grid: Grid, path: Path) -> list[Line]:
    """The last line of each of the grid's cells that has one."""
    runs = read_runs(path)
    done = {identity(line): line for line in runs}
    found = (done.get(identity(asdict(cell)), done.get(old_identity(cell))) for cell in grid_cells(grid, runs))
    return [line for line in found if line is not None]


def open_cells(grid: Grid, path: Path) -> list[Cell]:
    """The cells that the file has no line of yet, or only an error."""
    runs = read_runs(path)
    done = {identity(line) for line in runs if "error" not in line}
    return [cell for cell in grid_cells(grid, runs) if not {identity(asdict(cell)), old_identity(cell)} & done]


def identity(line: Line) -> tuple[Any, ...]:
    """What distinguishes a run from others; two lines with the same identity are of the same cell."""
    source = line.get("source")
    model = (source, None) if source else (None, line["model"])
    return (*model, *(line[name] for name in REQUIRED if name != "model"))


def old_identity(cell: Cell) -> tuple[Any, ...]:
    """The identity of the cell's line in a file of version 0.1, which has the last part of the model's name only."""
    return identity({**asdict(cell), "source": "", "model": Path(cell.source.split("@")[0]).name})
