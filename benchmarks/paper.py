"""Every table and figure of the K-prune paper on models of your own: runs or resumes the grids, and writes the page.

    python benchmarks/paper.py --part figure1 --reduction 0.8 --seed 0 --data DATA --model sst2=MODEL --list
    python benchmarks/paper.py --part figure1 --reduction 0.8 --seed 0 --data DATA --model sst2=MODEL
    python benchmarks/paper.py --part speed --data DATA --model mrpc=MODEL
    python benchmarks/paper.py --page docs/paper.md

Each part is a grid of `kprune compare` with a file of lines in `benchmarks/results/paper`: finished cells are skipped,
and a stopped run resumes. Without `--seed`, a whole seed of all tasks comes before the next one. `--list` prints the
runs that are left, and runs nothing. `speed` times the shapes that the runs of `table1` found. `--page` writes the
page, and pictures beside it, from the lines that exist; it leaves out trials with another sample or a limited test. A
file beside the lines has the commands and the machine of each part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import click
import torch
import transformers
from machine import provenance
from paper_page import write_page
from paper_runs import found_in, refused_cells
from transformers import PreTrainedModel

from kprune.checkpoints.source import Source, fetch
from kprune.data.tasks import TASKS
from kprune.deploy.runtimes import runtime_named
from kprune.deploy.shape_variants import reshaped
from kprune.deploy.timing import bind_inputs, random_inputs, time_interleaved
from kprune.jobs.comparison import compare
from kprune.jobs.grid import Cell, Grid
from kprune.jobs.results import append_result, open_cells, read_results, read_runs
from kprune.report.comparison_runs import ALLOWED_LOSS
from kprune.runtime.devices import torch_threads

RESULTS = Path(__file__).parent / "results/paper"
EIGHT = ("mrpc", "qqp", "sst2", "stsb", "mnli", "qnli", "squad", "squad2")
FIVE, THREE = tuple(range(5)), tuple(range(3))
OURS = ("kprune", "kprune criterion=released")
PAPERS_RIVALS = ("kwon", "kcm", "magnitude", "random")
OTHER_RIVALS = ("liar", "ziplm", "textpruner")
ABLATIONS = ("kprune", "kprune criterion=gradient", "kprune search=uniform", "kprune refit=no")
RETRAINED = ("dynabert-w minutes=10", "dynabert-w minutes=60", "dynabert-d minutes=60", "ebert minutes=60")
REDUCTIONS = (0.4, 0.6, 0.8)
TOKENS, WHOLE_SPLIT = 100_000, 10**9
SPEED_BATCH, SPEED_RUNTIMES = 32, ("torch", "onnxruntime")


@dataclass(frozen=True)
class Piece:
    """A grid of a part without its models."""

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    reductions: tuple[float, ...]
    seeds: tuple[int, ...]
    tokens: int = TOKENS


def released(option: str, *values: float) -> tuple[str, ...]:
    """Variants of the authors' criterion with these values of an option."""
    return tuple(f"kprune criterion=released {option}={value:g}" for value in values)


PARTS = {
    "figure1": [
        Piece(EIGHT, OURS, REDUCTIONS, FIVE),
        Piece(EIGHT, PAPERS_RIVALS, REDUCTIONS, THREE),
    ],
    "rivals": [Piece(EIGHT, OTHER_RIVALS, REDUCTIONS, THREE)],
    "table1": [
        Piece(
            ("mrpc", "stsb", "squad", "squad2"),
            ("kprune", "kwon", "kcm"),
            (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
            THREE,
        )
    ],
    "table2": [Piece(("mrpc", "squad"), ABLATIONS, (0.8,), FIVE)],
    "temperature": [Piece(("squad",), released("temperature", 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4), REDUCTIONS, (0,))],
    "rep_weight": [
        # The first and the last are predictive and representational knowledge alone.
        Piece(
            ("squad",),
            released("rep_weight", 0, 2.5e-6, 2.5e-5, 2.5e-4, 2.5e-3, 2.5e-2, 2.5e-1, 1e6),
            REDUCTIONS,
            (0,),
        )
    ],
    "head_weight": [Piece(("squad",), released("head_weight", *(2**n for n in range(12))), REDUCTIONS, (0,))],
    "samples": [
        Piece(("mrpc", "sst2", "stsb", "squad"), ("kprune ridge=1e-4",), (0.6, 0.8), THREE, tokens)
        for tokens in (1_000, 2_500, 5_000, 10_000, 25_000, 50_000, TOKENS)
    ],
    "figure3": [
        Piece(("mnli", "qnli"), ("kprune", "kprune heal=4x", "kwon", *OTHER_RIVALS), (0.75,), THREE),
        Piece(("mnli", "qnli"), RETRAINED, (0.75,), (0,), WHOLE_SPLIT),
    ],
}
"""The grids of each part; `kcm` cannot reach the reduction of Figure 3."""


def grids(part: str, models: dict[str, str], options: dict[str, Any]) -> Iterator[Grid]:
    """The part's grids, restricted as the options say: a whole seed of all tasks before the next one.

    Pieces that differ in methods alone are one grid, so that these share a sample and the dense model's test.
    """
    for seed in sorted({seed for piece in PARTS[part] for seed in piece.seeds}):
        together: dict[tuple[Any, ...], list[str]] = {}
        for piece in PARTS[part]:
            if seed in wanted(piece.seeds, options["seeds"]):
                key = (piece.tasks, wanted(piece.reductions, options["reductions"]), options["tokens"] or piece.tokens)
                together.setdefault(key, []).extend(wanted(piece.methods, options["methods"]))
        for (tasks, reductions, tokens), methods in together.items():
            chosen = {task: model for task, model in models.items() if task in tasks}
            if chosen and methods and reductions:
                yield Grid(chosen, tuple(methods), reductions, (seed,), tokens, options["data"], options["limit"])


def wanted(planned: tuple[Any, ...], named: Sequence[Any]) -> tuple[Any, ...]:
    """The planned values that were named, or all if none was."""
    return tuple(value for value in planned if not named or value in named)


def require_planned(part: str, models: dict[str, str], options: dict[str, Any]) -> None:
    """Raise if an option names what the part does not have, or if no model is of its tasks: nothing would run."""
    for name in ("task", "method", "reduction", "seed"):
        planned = list(dict.fromkeys(value for piece in PARTS[part] for value in getattr(piece, f"{name}s")))
        unknown = [value for value in options[f"{name}s"] if value not in planned]
        if name == "task" and not unknown and not set(models) & set(planned):
            unknown = list(models)
        if unknown:
            raise click.UsageError(
                f"the part {part} has no {name} {unknown[0]}; it has {', '.join(map(str, planned))}."
            )


def left_of(grid: Grid, path: Path) -> list[Cell]:
    """The grid's runs that have no line yet, but for those that the method refuses for the same model and sample."""
    cells = open_cells(grid, path)
    alike = {(cell.source, cell.tokens, cell.limit) for cell in cells}
    lines = read_runs(path)
    refused = refused_cells([run for run in lines if (run.get("source"), run["tokens"], run["limit"]) in alike])
    return [cell for cell in cells if (cell.task, cell.method, cell.reduction) not in refused]


def fastest_within_loss(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each task and method, the run of the lowest seed at the largest reduction that loses less than three points.

    The loss is the mean over seeds.
    """
    groups: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["task"], run["method"], run["reduction"]), []).append(run)
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for (task, method, _), group in sorted(groups.items()):
        if mean(-run["differences"][0]["value"] for run in group) < ALLOWED_LOSS:
            best[task, method] = min(group, key=lambda run: int(run["seed"]))  # reductions ascend
    return list(best.values())


def time_shapes(
    dense: PreTrainedModel, shapes: dict[str, list[int]], runtime: str, length: int, seconds: float
) -> dict[str, float]:
    """How many times as fast as the dense model copies with these numbers of units are, by name."""
    models = {"dense": dense}
    for name, kept in shapes.items():
        units = iter(kept)
        models[name] = reshaped(dense, lambda sublayer, units=units: next(units))  # type: ignore[misc]
    threads = torch.get_num_threads()
    inputs = random_inputs(dense.config, SPEED_BATCH, length, dense.device)
    example = random_inputs(dense.config, 2, 8, dense.device)
    with torch_threads(threads):
        started = {name: runtime_named(runtime).start(model, example, threads) for name, model in models.items()}
        calls = {name: bind_inputs(run, inputs) for name, run in started.items()}
        times = time_interleaved(calls, seconds=seconds, min_rounds=9)
    return {name: times["dense"].ratio(times[name]) for name in shapes}


def measure_speed(models: dict[str, str], runs: Path, path: Path, seconds: float) -> None:
    """Append the measured speed-up of each task's and method's fastest run; those that are there are skipped."""
    done = {(line["task"], line["method"], line["reduction"], line["runtime"]) for line in read_results(path)}
    chosen = fastest_within_loss(found_in(runs, PARTS["table1"]).runs)
    for task, folder in models.items():
        of_task = {run["method"]: run for run in chosen if run["task"] == task}
        dense = Source(fetch(folder)).load().float().eval() if of_task else None
        length = round(TASKS[task].length or 128)
        for runtime in SPEED_RUNTIMES:
            left = {m: r for m, r in of_task.items() if (task, m, r["reduction"], runtime) not in done}
            if not left or dense is None:
                continue
            ratios = time_shapes(dense, {m: r["kept"] for m, r in left.items()}, runtime, length, seconds)
            for method, run in left.items():
                line = {"task": task, "method": method, "reduction": run["reduction"], "runtime": runtime}
                shape = {"batch": SPEED_BATCH, "length": length, "speedup": round(ratios[method], 3)}
                append_result(path, {**line, **shape, **provenance()})


@click.command()
@click.option("--part", type=click.Choice([*PARTS, "speed"]), help="What to run.")
@click.option("--page", type=click.Path(path_type=Path), help="Write this page from the existing lines; run nothing.")
@click.option("--model", "models", multiple=True, metavar="TASK=MODEL")
@click.option("--task", "tasks", multiple=True, help="Only these of the models.")
@click.option("--method", "methods", multiple=True, help="Only these of the part's methods.")
@click.option("--reduction", "reductions", multiple=True, type=float, help="Only these of the part's reductions.")
@click.option("--seed", "seeds", multiple=True, type=int, help="Only these of the part's seeds.")
@click.option("--data", help="Folder with the data sets.  [default: the hub]")
@click.option("--tokens", type=int, help="Another sample size; for trials, which the page leaves out.")
@click.option("--limit", type=int, help="Test examples, evenly spread; for trials.  [default: all]")
@click.option("--list", "lists", is_flag=True, help="Print the runs that are left; run nothing.")
@click.option("--seconds", default=20.0, show_default=True, help="Seconds per timed model.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS, help="Folder of the lines.")
def main(
    part: str | None, page: Path | None, models: tuple[str, ...], results: Path, lists: bool, **options: Any
) -> None:
    """Run or resume a part of the paper's grids, or write the page."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if (part is None) == (page is None):
        raise click.UsageError("name a --part to run, or a --page to write.")
    if page is not None:
        write_page(page, results, PARTS)
        return
    assert part is not None
    chosen = {task: model for task, _, model in (each.partition("=") for each in models)}
    unknown = [task for task in options["tasks"] if task not in chosen]
    if unknown or not chosen:
        raise click.UsageError(f"name the models to prune by --model {unknown[0] if unknown else 'TASK'}=MODEL.")
    chosen = {task: model for task, model in chosen.items() if not options["tasks"] or task in options["tasks"]}
    results.mkdir(parents=True, exist_ok=True)
    if part == "speed":
        measure_speed(chosen, results / "table1.jsonl", results / "speed.jsonl", options["seconds"])
        return
    require_planned(part, chosen, options)
    run_part(part, results, list(grids(part, chosen, options)), lists=lists)


def run_part(part: str, results: Path, planned: Sequence[Grid], *, lists: bool) -> None:
    """Run what is left of the part's grids, or print it."""
    path = results / f"{part}.jsonl"
    left = [(grid, left_of(grid, path)) for grid in planned]
    if lists:
        for cell in (cell for _, cells in left for cell in cells):
            click.echo(f"{cell.task}: {cell.method}, {cell.reduction:.0%}, seed {cell.seed}, {cell.tokens:,} tokens")
        click.echo(f"{sum(len(cells) for _, cells in left)} runs are left")
        return
    append_result(results / f"{part}.commands.jsonl", provenance())
    for grid, cells in left:
        if cells:
            compare(grid, path, finished=lambda line: click.echo(json.dumps(line)[:160]))


if __name__ == "__main__":
    main()
