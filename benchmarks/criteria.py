"""Loss by criterion: metrics and fidelity to the dense model, on the same samples and test examples.

    python benchmarks/criteria.py benchmarks/results/criteria.jsonl --data DATA --model sst2=MODEL --model stsb=MODEL \
        --model squad=MODEL --model stsb-cosine=MODEL

The grid is one of `kprune compare`: a stopped run resumes, and `kprune plot` draws the results. The script runs the
missing cells, then prints a table of all cases and two ratios to `released`: points of the metric lost, and knowledge
lost (KL divergence; squared error of a regression; squared distance of normalised embeddings). `--table` only prints
the existing results. Times are in `benchmarks/cost.py`, because criteria share measurements between reductions here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import click
import transformers

from kprune.jobs.comparison import compare
from kprune.jobs.grid import Grid
from kprune.jobs.results import read_runs

Line = dict[str, Any]
CRITERIA = ("compensated", "fisher", "released", "paper")
BESIDE = "released"


def lost_points(line: Line) -> float:
    """Points of the metric lost, on a scale of 100."""
    return -float(line["differences"][0]["value"])


def lost_knowledge(line: Line) -> float:
    figures = {figure["name"]: float(figure["value"]) for figure in line["fidelity"]}
    if "cosine" in figures:  # ‖a − b‖² of vectors of length 1
        return 2.0 - figures["cosine"] / 50.0
    return figures.get("divergence", figures.get("squared-error", float("nan")))


def criterion(line: Line) -> str:
    return str(line["settings"]["criterion"])


def spread(values: Sequence[float]) -> str:
    """Mean and 95 % interval of the mean over seeds, by Student's t."""
    if len(values) < 2:
        return f"{mean(values):.3f}"
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return f"{mean(values):.3f} ± {half:.3f}"


def ratio(lines: Sequence[Line], name: str, value: Callable[[Line], float]) -> float:
    """A criterion's mean loss divided by that of `released`, on the cases that both have."""
    cases = {name: {(line["task"], line["seed"]): value(line) for line in lines if criterion(line) == name}}
    cases[BESIDE] = {(line["task"], line["seed"]): value(line) for line in lines if criterion(line) == BESIDE}
    shared = sorted(set(cases[name]) & set(cases[BESIDE]))
    return mean(cases[name][case] for case in shared) / mean(cases[BESIDE][case] for case in shared)


def show(lines: Sequence[Line]) -> None:
    """Print both tables in Markdown."""
    click.echo("| task | removed | criterion | runs | points lost | knowledge lost |\n|---|---|---|---|---|---|")
    for task, reduction in sorted({(line["task"], line["reduction"]) for line in lines}):
        for name in CRITERIA:
            runs = [
                line for line in lines if (line["task"], line["reduction"], criterion(line)) == (task, reduction, name)
            ]
            if runs:
                points, knowledge = (spread([value(run) for run in runs]) for value in (lost_points, lost_knowledge))
                click.echo(f"| {task} | {reduction:.0%} | {name} | {len(runs)} | {points} | {knowledge} |")
    click.echo(f"\n| removed | criterion | points lost, over {BESIDE}'s | knowledge lost, mean of tasks' ratios |")
    click.echo("|---|---|---|---|")
    for reduction in sorted({line["reduction"] for line in lines}):
        chosen = [line for line in lines if line["reduction"] == reduction]
        beside = {line["task"] for line in chosen if criterion(line) == BESIDE}
        for name in CRITERIA:
            tasks = sorted(beside & {line["task"] for line in chosen if criterion(line) == name})
            if tasks:
                of_tasks = [[line for line in chosen if line["task"] == task] for task in tasks]
                of_knowledge = mean(ratio(of_task, name, lost_knowledge) for of_task in of_tasks)
                of_points = ratio([line for of_task in of_tasks for line in of_task], name, lost_points)
                click.echo(f"| {reduction:.0%} | {name} | {of_points:.2f} | {of_knowledge:.2f} |")


@click.command()
@click.argument("results", type=click.Path(path_type=Path))
@click.option("--model", "models", multiple=True, metavar="TASK=MODEL")
@click.option("--data", help="Folder with the data sets.  [default: the hub]")
@click.option("--criterion", "criteria", multiple=True, default=CRITERIA, show_default=True)
@click.option("--reduction", "reductions", multiple=True, type=float, default=(0.8, 0.6, 0.9), show_default=True)
@click.option("--seed", "seeds", multiple=True, type=int, default=(0, 1, 2), show_default=True)
@click.option("--tokens", default=10_000, show_default=True)
@click.option("--limit", default=1_000, show_default=True, help="Test examples, evenly spread.")
@click.option("--table", "is_told", is_flag=True, help="Print the existing results; run nothing.")
def main(results: Path, models: tuple[str, ...], is_told: bool, **options: Any) -> None:
    """Prune models by several criteria and print the loss of each."""
    if not is_told:
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        grid = Grid(
            models={task: model for task, _, model in (each.partition("=") for each in models)},
            methods=tuple(f"kprune criterion={name}" for name in options["criteria"]),
            reductions=options["reductions"],
            seeds=options["seeds"],
            tokens=options["tokens"],
            data=options["data"],
            limit=options["limit"],
        )
        compare(grid, results, finished=lambda line: click.echo(json.dumps(line)[:160]))
    show([line for line in read_runs(results) if "error" not in line])


if __name__ == "__main__":
    main()
