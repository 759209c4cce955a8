"""Consoles, and bars on standard error for work that takes a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from kprune.pruned import Progress

out = Console()
err = Console(stderr=True)


@contextmanager
def quiet(is_quiet: bool) -> Iterator[None]:
    """Nothing is printed meanwhile, if so."""
    before = out.quiet, err.quiet
    out.quiet = err.quiet = is_quiet
    try:
        yield
    finally:
        out.quiet, err.quiet = before


@contextmanager
def progress_bar(*, disable: bool = False) -> Iterator[Any]:
    """A bar with the sublayer at hand, the last error after refit and the time left, to standard error."""
    columns = (
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.description:<18}"),
        TextColumn("{task.fields[error]:<14}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Bar(*columns, console=err, transient=True, disable=disable) as bar:
        task = bar.add_task("loading", total=1.0, error="")

        def advance(progress: Progress) -> None:
            bar.update(task, completed=progress.fraction, description=progress.sublayer)
            if progress.step is not None:
                bar.update(task, error=f"error {progress.step.error_after:.4f}")

        yield advance


@contextmanager
def counting_bar(total: int, done: int) -> Iterator[Any]:
    """A bar over a grid's cells, with the last one's outcome, to standard error."""
    columns = (BarColumn(), TextColumn("{task.completed} of {task.total}"), TextColumn("{task.description}"))
    with Bar(*columns, TimeRemainingColumn(), console=err, transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)

        def count(line: dict[str, Any]) -> None:
            figure = line.get("figures", [{"name": "failed", "value": float("nan")}])[0]
            told = f"{line['task']} {line['method']} {line['reduction']:g}: {figure['name']} {figure['value']:.2f}"
            bar.update(task, advance=1, description=told)

        yield count
