"""Run a grid: the same models and samples for every method, one JSON line per finished cell.

The results file is the only state: a run that is stopped or killed continues when it is started again.
"""

from __future__ import annotations

import logging
import multiprocessing
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from kprune.checkpoints.names import short_name, without_folders
from kprune.checkpoints.source import Source, fetch
from kprune.config import HealConfig, PruneConfig, RunConfig
from kprune.data.tasks import task_named, thin
from kprune.errors import KpruneError
from kprune.jobs.data_options import DataOptions
from kprune.jobs.grid import Cell, Grid, parse_method, split_settings
from kprune.jobs.kept_targets import kept_targets
from kprune.jobs.preparation import Prepared, prepare
from kprune.jobs.prune_checkpoint import State, evaluate_result, prune_checkpoint, prune_to_reduction
from kprune.jobs.results import append_result, open_cells
from kprune.models.gates import gates_of
from kprune.models.outputs import Prediction
from kprune.pruning.result import Pruned
from kprune.runtime.memory import peak_megabytes, reset_peak

log = logging.getLogger(__name__)


def compare(
    grid: Grid, path: Path, *, jobs: int = 1, finished: Callable[[dict[str, Any]], None] = lambda line: None
) -> None:
    """Run every cell that is not in the file yet; a cell that fails is recorded, and the next one runs."""
    for task in grid.models:
        task_named(task)
    for method in grid.methods:
        parse_method(method)
    groups = _grouped(open_cells(grid, path), lambda cell: (cell.task, cell.seed))
    path.parent.mkdir(parents=True, exist_ok=True)
    if jobs == 1:
        dense: dict[str, dict[int, Prediction]] = {}  # of each task, for all seeds
        for (task, _), cells in groups.items():
            for line in run_cells(grid, cells, dense.setdefault(task, {})):
                append_result(path, line)
                finished(line)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=_divide_threads, initargs=(jobs,)) as pool:
        work = [(grid, cells, path) for cells in groups.values()]
        for lines in pool.imap_unordered(_run_and_append, work):
            for line in lines:
                finished(line)


def _divide_threads(jobs: int) -> None:
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))


def _run_and_append(work: tuple[Grid, list[Cell], Path]) -> list[dict[str, Any]]:
    grid, cells, path = work
    lines = []
    for line in run_cells(grid, cells):
        append_result(path, line)  # at once, so that a kill loses nothing
        lines.append(line)
    return lines


def run_cells(
    grid: Grid, cells: Sequence[Cell], dense: dict[int, Prediction] | None = None
) -> Iterator[dict[str, Any]]:
    """Lines of cells of one task and seed, which share the model, the sample and the dense model's predictions.

    `dense` has the predictions on the task's test that other seeds made, and gets those that are made here.
    """
    try:
        prepared = prepare_task(grid, cells[0].task, cells[0].seed)
        if dense is not None:
            prepared.cached_predictions = dense
        first = _config(prepared, replace(cells[0], reduction=0.0), {})
        prepared.pruner(first, RunConfig())  # its sample serves all variants
    except Exception as error:
        yield from _failures(grid, cells, error)
        return
    for alike in _grouped(cells, _pruning_of).values():  # variants that only heal differently are together
        yield from _run_variants(grid, prepared, alike)


def _grouped(cells: Sequence[Cell], key: Callable[[Cell], Any]) -> dict[Any, list[Cell]]:
    """The cells by a key, in the order in which they come."""
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return groups


def _pruning_of(cell: Cell) -> tuple[Any, ...]:
    """The method of a cell and its settings of pruning."""
    name, knobs = parse_method(cell.method)
    return name, *sorted(split_settings(knobs)[0].items())


def _run_variants(grid: Grid, prepared: Prepared, cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """Lines of cells with the same settings of pruning.

    Each reduction is pruned once, and may be healed in several ways. Later reductions reuse the first one's passes that
    no reduction changes.
    """
    run, several = RunConfig(), len({cell.reduction for cell in cells}) > 1
    name, knobs = parse_method(cells[0].method)
    settings = {"method": name, **split_settings(knobs)[0]}
    try:
        pruner = prepared.pruner(_config(prepared, replace(cells[0], reduction=0.0), settings), run)
    except Exception as error:
        yield from _failures(grid, cells, error)
        return
    shares_passes = False
    with kept_targets(pruner, run, several=several):
        for variants in _grouped(cells, lambda cell: cell.reduction).values():
            prune = PruneOnce()
            for cell in variants:
                try:
                    config = _config(prepared, cell, settings)
                    healing = split_settings(parse_method(cell.method)[1])[1]
                    heal = HealConfig(seed=cell.seed, **healing) if healing else None
                    state = prune_checkpoint(prepared, config, run, prune=prune, stages=[evaluate_gates], heal=heal)
                except Exception as error:
                    yield from _failures(grid, [cell], error)
                    continue
                healing_seconds = round(state.result.seconds - prune.seconds, 4)
                yield {**_line(cell, state), "heal_seconds": healing_seconds, "shares_passes": shares_passes}
            shares_passes = shares_passes or prune.is_done


class PruneOnce:
    """A stage that prunes the first time, and gives the same result to later variants."""

    def __init__(self) -> None:
        self._pruned: Pruned | None = None

    @property
    def is_done(self) -> bool:
        return self._pruned is not None

    @property
    def seconds(self) -> float:
        """Seconds of the pruning."""
        assert self._pruned is not None
        return self._pruned.seconds

    def __call__(self, state: State) -> State:
        if self._pruned is None:
            reset_peak()
            self._pruned = prune_to_reduction(state).result
        return replace(state, pruned=self._pruned)


def evaluate_gates(state: State) -> State:
    """Evaluate a model with gates, and note the mean FLOPs of the test's inputs; other models are evaluated later."""
    gates = gates_of(state.result.model)
    if gates is None:
        return state
    gates.restart()
    state = evaluate_result(state)
    return replace(state, details={**state.details, "test_flops": [state.result.flops[0], gates.mean_cost]})


def prepare_task(grid: Grid, task: str, seed: int) -> Prepared:
    """The model of a task with a sample of its training split and its test."""
    source = Source(fetch(grid.models[task]))
    data = DataOptions(task=task, table=grid.data, tokens=grid.tokens)
    sample, test = data.sample_and_test(wants_test=True, seed=seed)
    return prepare(
        source,
        sample,
        thin(test, grid.limit) if test is not None else None,
        PruneConfig(seed=seed),
        tokens=grid.tokens,
        device="cpu",
        with_labels=True,
        in_float32=True,
        held_out=max((_held_out(method) for method in grid.methods), default=0.0),
    )


def _held_out(method: str) -> float:
    """The share of text that a variant holds out; 0 if it is not healed."""
    healing = split_settings(parse_method(method)[1])[1]
    return HealConfig(**healing).held_out if healing else 0.0


def _config(prepared: Prepared, cell: Cell, settings: dict[str, Any]) -> PruneConfig:
    return PruneConfig(reduction=cell.reduction, seed=cell.seed, pooling=prepared.source.pooling, **settings)


def _failures(grid: Grid, cells: Sequence[Cell], error: Exception) -> Iterator[dict[str, Any]]:
    """The lines of cells that failed; an error that is not kprune's own is logged, and the next cells run."""
    if not isinstance(error, KpruneError):
        log.error("%s and %d more cells failed", cells[0].method, len(cells) - 1, exc_info=error)
    return (_failure(grid, cell, error) for cell in cells)


def _failure(grid: Grid, cell: Cell, error: Exception) -> dict[str, Any]:
    """The line of a cell that failed; folders in the message are shortened, since results are published."""
    reason = str(error)
    if not isinstance(error, KpruneError):
        reason = without_folders(f"{type(error).__name__}: {reason}".splitlines()[0])
    for name in (grid.models[cell.task], grid.data):
        if name and Path(name).is_absolute():
            reason = reason.replace(name, short_name(name))
    return {**asdict(cell), "error": reason}


def _line(cell: Cell, state: State) -> dict[str, Any]:
    pruned, evaluation = state.result, state.evaluation
    assert evaluation is not None
    return {
        **asdict(cell),
        **evaluation.as_json(),
        "settings": pruned.config.as_json(),
        **({} if pruned.healed is None else {"healed": pruned.healed}),
        "units": [step.units for step in pruned.steps],
        "kept": [len(step.kept) for step in pruned.steps],
        "flops": list(pruned.flops),
        **state.details,
        "parameters": list(pruned.parameters),
        "prune_seconds": round(pruned.seconds, 2),
        "peak_megabytes": round(peak_megabytes()),
        "sample_tokens": pruned.tokens,
        "commit": commit(),
    }


def commit() -> str:
    """The version, and the commit if it runs from a repository."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{version('kprune')} {described.stdout.strip()}".strip()
