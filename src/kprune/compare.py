"""Methods × tasks × reductions × seeds on the same models and samples, a JSON line per finished cell.

The file of lines is all the state there is: a run that is stopped, or killed, is resumed by running it again, and what
is in the file is not done again.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import torch

from kprune.data import draw, longest_input
from kprune.errors import KpruneError
from kprune.evaluate import Evaluation, evaluate
from kprune.labels import training_labels
from kprune.memory import forget_peak, peak_megabytes
from kprune.methods import METHODS
from kprune.outputs import Prediction
from kprune.prune import Pruner
from kprune.pruned import Pruned
from kprune.store import Source, fetch
from kprune.tasks import EMBEDDING, Test, load_task, read_test, task_named, task_table, thin

KNOBS: dict[str, Callable[[str], Any]] = {
    "criterion": str,
    "temperature": float,
    "rep_weight": float,
    "head_weight": float,
    "ridge": float,
    "search": str,
    "align": int,
    "refresh": int,
    "refit": lambda text: {"yes": True, "no": False}[text],
}
"""What a variant of K-prune may set, as in `kprune refit=no`."""


@dataclass(frozen=True)
class Grid:
    """What is compared."""

    models: dict[str, str]
    """The model of each task, a folder or hub name."""
    methods: tuple[str, ...] = ("kprune", "kwon", "kcm", "magnitude", "random")
    """Names, each with K-prune's knobs after it where wanted: `kprune criterion=released`."""
    reductions: tuple[float, ...] = (0.4, 0.6, 0.8)
    seeds: tuple[int, ...] = (0, 1, 2)
    tokens: int = 25_000
    data: str | None = None
    """The folder that the data sets' folders are in; None: the hub."""
    limit: int | None = None
    """Rows of the validation split, evenly spread; None: all."""

    def cells(self) -> list[Cell]:
        """Every combination, those that share a sample beside each other."""
        return [
            Cell(task, Path(model).name, method, reduction, seed, self.tokens, self.limit)
            for (task, model), seed, method, reduction in product(
                self.models.items(), self.seeds, self.methods, self.reductions
            )
        ]


@dataclass(frozen=True)
class Cell:
    """One run."""

    task: str
    model: str
    method: str
    reduction: float
    seed: int
    tokens: int
    limit: int | None


def read_grid(path: Path) -> dict[str, Any]:
    """A grid's fields from a TOML file."""
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise KpruneError(f"cannot read {path} as TOML: {error}.") from error
    known = {each.name for each in fields(Grid)}
    strangers = sorted(set(found) - known)
    if strangers:
        raise KpruneError(f"{path} sets {strangers[0]!r}; it may set {', '.join(sorted(known))}.")
    for name, value in found.items():
        wanted = {"models": dict, "tokens": int, "limit": int, "data": str}.get(name, list)
        if not isinstance(value, wanted):
            kinds = {dict: "a table", int: "a whole number", str: "a text", list: "a list"}
            raise KpruneError(f"{path} sets {name} to {value!r}; it must be {kinds[wanted]}.")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
    """A method's name and the knobs that it sets."""
    name, *settings = text.split() or [""]
    if name not in METHODS:
        raise KpruneError(f"there is no method {name!r}; use one of {', '.join(METHODS)}.")
    knobs: dict[str, Any] = {}
    for setting in settings:
        knob, _, value = setting.partition("=")
        if name != "kprune" or knob not in KNOBS:
            raise KpruneError(f"{text!r} sets {knob!r}; kprune takes {', '.join(KNOBS)}, and rivals nothing.")
        try:
            knobs[knob] = KNOBS[knob](value)
        except (ValueError, KeyError) as error:
            raise KpruneError(f"{text!r} sets {knob} to {value!r}, which it cannot be.") from error
    return name, knobs


def read_results(path: Path) -> list[dict[str, Any]]:
    """The lines of a results file; a last line that a crash cut short is passed over."""
    if not path.exists():
        return []
    if not path.is_file():
        raise KpruneError(f"{path} is not a file; results are lines in a file, such as results.jsonl.")
    lines = path.read_text("utf-8").split("\n")
    found = []
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line))
        except ValueError as error:
            if number == len(lines) - 1:  # no line break after it: it was never finished
                continue
            raise KpruneError(f"{path}, line {number + 1}, is not JSON; mend it or take it out.") from error
    return found


def read_runs(path: Path) -> list[dict[str, Any]]:
    """The same, of which every line must be a run."""
    found = read_results(path)
    wanted = {each.name for each in fields(Cell)}
    for number, line in enumerate(found):
        if not isinstance(line, dict) or not wanted <= set(line) or not {"figures", "error"} & set(line):
            raise KpruneError(f"{path}, line {number + 1}, is not a run of kprune compare; take it out.")
    return found


def append_result(path: Path, line: dict[str, Any]) -> None:
    """Add a line for good: whole, on the disk, and in no other process's way."""
    content = (json.dumps(line) + "\n").encode()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        end = os.lseek(descriptor, 0, os.SEEK_END)
        if end and os.pread(descriptor, 1, end - 1) != b"\n":  # what a crash cut short
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


def compare(
    grid: Grid, path: Path, *, jobs: int = 1, finished: Callable[[dict[str, Any]], None] = lambda line: None
) -> None:
    """Run every cell that is not in the file yet; one that fails is recorded, and the others go on."""
    for task in grid.models:
        task_named(task)
    for method in grid.methods:
        parse_method(method)
    rooms: dict[tuple[str, int], list[Cell]] = {}
    for cell in open_cells(grid, path):
        rooms.setdefault((cell.task, cell.seed), []).append(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    if jobs == 1:
        for cells in rooms.values():
            for line in run_cells(grid, cells):
                append_result(path, line)
                finished(line)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=_share_cores, initargs=(jobs,)) as pool:
        work = [(grid, cells, path) for cells in rooms.values()]
        for lines in pool.imap_unordered(_work, work):
            for line in lines:
                finished(line)


def _share_cores(jobs: int) -> None:
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))


def _work(work: tuple[Grid, list[Cell], Path]) -> list[dict[str, Any]]:
    grid, cells, path = work
    lines = []
    for line in run_cells(grid, cells):
        append_result(path, line)  # at once: what is done stays done
        lines.append(line)
    return lines


def run_cells(grid: Grid, cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """Lines of cells of one task and seed: they share the model, the sample and the dense model's predictions."""
    task, seed = cells[0].task, cells[0].seed
    try:
        bench = Bench(grid, task, seed)
    except KpruneError as error:
        yield from ({**asdict(cell), "error": str(error)} for cell in cells)
        return
    for cell in cells:
        forget_peak()
        try:
            pruned, result = bench.run(cell)
        except KpruneError as error:
            yield {**asdict(cell), "error": str(error)}
            continue
        yield {
            **asdict(cell),
            **result.as_json(),
            "settings": asdict(pruned.settings),
            "units": [step.units for step in pruned.steps],
            "kept": [len(step.kept) for step in pruned.steps],
            "flops": list(pruned.flops),
            "parameters": list(pruned.parameters),
            "prune_seconds": round(pruned.seconds, 2),
            "peak_megabytes": round(peak_megabytes()),
            "sample_tokens": pruned.tokens,
            "commit": commit(),
        }


class Bench:
    """What the cells of one task and seed share."""

    def __init__(self, grid: Grid, name: str, seed: int) -> None:
        task = task_named(name)
        source = Source(fetch(grid.models[name]))
        self.pooling, self.max_length = source.pooling, source.max_length
        self.model, self.tokenizer = source.load().float(), source.load_tokenizer()
        train = replace(
            read_test(task_table(task, task.train, grid.data), task.texts, task.label, name=name), labels=task.labels
        )
        rows, labels = list(train.rows), training_labels(train, task.kind, self.model.config)
        if task.kind == EMBEDDING:
            rows, labels = [(text,) for row in rows for text in row], None
        length = min(longest_input(self.tokenizer, self.model.config), self.max_length or 10**9)
        batches = draw(rows, self.tokenizer, tokens=grid.tokens, max_length=length, seed=seed, labels=labels)
        self.pruner = Pruner(self.model, batches, pooling=self.pooling, seed=seed)
        self.test: Test = thin(load_task(name, data=grid.data), grid.limit)
        self._pruners: dict[str, Pruner] = {}
        self._recalled: dict[int, Prediction] = {}

    def run(self, cell: Cell) -> tuple[Pruned, Evaluation]:
        name, knobs = parse_method(cell.method)
        if cell.method not in self._pruners:
            self._pruners[cell.method] = self.pruner.with_settings(**knobs) if knobs else self.pruner
        pruned = METHODS[name].prune(self._pruners[cell.method], cell.reduction, lambda progress: None)
        result = evaluate(
            pruned.model,
            self.tokenizer,
            self.test,
            against=self.model,
            pooling=self.pooling,
            max_length=self.max_length,
            recalled=self._recalled,
        )
        return pruned, result


def commit() -> str:
    """The version that ran, and the commit where it runs from a repository."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{version('kprune')} {described.stdout.strip()}".strip()
