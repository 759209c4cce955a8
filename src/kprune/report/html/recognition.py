"""The page of a file or folder, whatever result it holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kprune.checkpoints.inspection import inspect
from kprune.checkpoints.source import Source
from kprune.errors import KpruneError
from kprune.jobs.check_model import ensure_row
from kprune.jobs.results import read_results
from kprune.jobs.sweep import is_header, read_sweep
from kprune.jobs.sweep_choice import knee_of, largest_within, points_of
from kprune.report.comparison_runs import finished_runs
from kprune.report.html.comparison_document import compare_page
from kprune.report.html.documents import bench_page, evaluation_page, folder_page, prune_page
from kprune.report.html.sweep_document import sweep_page

JSON_PAGES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "timings": bench_page,
    "steps": lambda data: prune_page(data, Path(str(data["folder"])).name),
    "resampled": lambda data: evaluation_page(data, ("model", "other model" if data["against"] else "")),
}
"""The page of a JSON result, by an entry that only this kind of result has."""


def page_of(path: Path, *, max_drop: float | None = None, guard: bool = True) -> str:
    """The page of a model folder, of the file of a sweep or a comparison, or of the JSON that a command printed."""
    if path.is_dir():
        ensure_row(Source(path))
        return folder_page(asdict(inspect(path)), path.resolve().name)
    if not path.exists():
        raise KpruneError(f"there is no {path}; name a model folder, or a file of results.")
    try:
        return _page_of_file(path, max_drop, guard)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise KpruneError(
            f"{path} cannot be shown ({type(error).__name__}: {error}); name a file that kprune wrote."
        ) from error


def _page_of_file(path: Path, max_drop: float | None, guard: bool) -> str:
    content = _whole_json(path)
    if isinstance(content, dict) and not is_header(content):
        for entry, make in JSON_PAGES.items():
            if entry in content and "task" not in content:
                return make(content)
    lines = read_results(path)
    if lines and is_header(lines[0]):
        found = read_sweep(path)
        points = points_of(found)
        if not points:
            raise KpruneError(f"{path} has no finished point yet; start kprune sweep again.")
        chosen = knee_of(points) if max_drop is None else largest_within(points, max_drop, guard=guard)
        return sweep_page(found, max_drop=max_drop, chosen=chosen)
    return compare_page(finished_runs(path), path.stem)


def _whole_json(path: Path) -> Any:
    """The file as one JSON value; None if it has several lines of JSON."""
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError:
        return None
