"""Consoles, and progress bars on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from kprune.pruning.progress import Progress
    from kprune.pruning.result import Step

out = Console(markup=False, emoji=False)
err = Console(stderr=True, markup=False, emoji=False)
"""Names of files and models are printed as they are: `runs/[v2]` is no markup."""
_is_verbose: ContextVar[bool] = ContextVar("is_verbose", default=False)


@contextmanager
def quiet(is_quiet: bool) -> Iterator[None]:
    """Silence both consoles inside the block if `is_quiet`."""
    before = out.quiet, err.quiet
    out.quiet, err.quiet = out.quiet or is_quiet, err.quiet or is_quiet
    try:
        yield
    finally:
        out.quiet, err.quiet = before


@contextmanager
def messages(*, is_quiet: bool, is_verbose: bool) -> Iterator[None]:
    """Inside the block, print nothing to standard error if `is_quiet`, and finished sublayers too if `is_verbose`."""
    before = err.quiet
    err.quiet = is_quiet
    token = _is_verbose.set(is_verbose)
    try:
        yield
    finally:
        err.quiet = before
        _is_verbose.reset(token)


@contextmanager
def progress_bar(*, disable: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Yield a callback that updates a bar: current sublayer, last error after refit, time left."""
    columns = (
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.description:<18}", markup=False),
        TextColumn("{task.fields[error]:<14}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Bar(*columns, console=err, transient=True, disable=disable) as bar:
        task = bar.add_task("loading", total=1.0, error="")

        def advance(progress: Progress) -> None:
            bar.update(task, completed=progress.fraction, description=progress.sublayer)
            if progress.step is not None:
                if _is_verbose.get():
                    bar.console.print(_describe_step(progress.step), highlight=False)
                bar.update(task, error=f"error {progress.step.error_after:.4f}")
            elif progress.note:
                bar.update(task, error=progress.note)

        yield advance


def _describe_step(step: Step) -> str:
    return f"{step.name}: {len(step.kept):,} of {step.units:,} kept, error {step.error_after:.4f}"


@contextmanager
def counting_bar(total: int, done: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a callback that counts finished runs of a grid and shows the last result."""
    columns = (
        BarColumn(),
        TextColumn("{task.completed} of {task.total}"),
        TextColumn("{task.description}", markup=False),
    )
    with Bar(*columns, TimeRemainingColumn(), console=err, transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)

        def count(run: dict[str, Any]) -> None:
            figure = run.get("figures", [{"name": "failed", "value": float("nan")}])[0]
            cell = f"{run['task']} {run['method']} {run['reduction']:g}"
            bar.update(task, advance=1, description=f"{cell}: {figure['name']} {figure['value']:.2f}")

        yield count
