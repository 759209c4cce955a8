"""The results file of a comparison: one JSON line per finished cell."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from kprune.errors import KpruneError
from kprune.jobs.grid import Cell, Grid


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
    """The lines of a results file, all of which must be runs."""
    results = read_results(path)
    required = {each.name for each in fields(Cell)}
    for number, line in enumerate(results):
        if not isinstance(line, dict) or not required <= set(line) or not {"figures", "error"} & set(line):
            raise KpruneError(f"{path}, line {number + 1}, is not a run of kprune compare; delete it.")
    return results


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


def open_cells(grid: Grid, path: Path) -> list[Cell]:
    """The cells that the file has no line of yet."""
    done = {tuple(line[each.name] for each in fields(Cell)) for line in read_runs(path)}
    return [cell for cell in grid.cells() if tuple(asdict(cell).values()) not in done]
