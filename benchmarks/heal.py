"""What healing wins back: metrics and fidelity of pruned and of healed models, on the same samples and tests.

    python benchmarks/heal.py benchmarks/results/heal.jsonl --data DATA --model sst2=MODEL --model stsb=MODEL \
        --model squad=MODEL --model stsb-cosine=MODEL

The grid is one of `kprune compare`: a stopped run resumes. Each line has its settings, seed, commit and times; a file
beside the results has the commands and the machine. `--table` only prints the existing results. The last table divides
what healed models lose by what the same models lose unhealed, and the time of healing by that of a pruning that shares
no passes with another one: the first reduction's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import click
import transformers
from criteria import Line, lost_knowledge, lost_points, spread
from machine import provenance

from kprune.jobs.comparison import compare
from kprune.jobs.grid import Grid
from kprune.jobs.results import append_result, read_runs

PLAIN = "kprune"


def whole_runs(lines: Sequence[Line]) -> dict[tuple[str, int], float]:
    """Seconds of the first pruning of every task and seed, which shares nothing."""
    plain = [line for line in lines if line["method"] == PLAIN and not line["shares_passes"]]
    return {(line["task"], line["seed"]): float(line["prune_seconds"]) for line in plain}


def show(lines: Sequence[Line]) -> None:
    """Print the losses of every case, then the ratios to the unhealed models."""
    methods = sorted({line["method"] for line in lines}, key=lambda name: (name != PLAIN, name))
    click.echo(
        "| task | removed | method | runs | points lost | knowledge lost | seconds |\n|---|---|---|---|---|---|---|"
    )
    for task, reduction in sorted({(line["task"], line["reduction"]) for line in lines}):
        for name in methods:
            runs = [
                line for line in lines if (line["task"], line["reduction"], line["method"]) == (task, reduction, name)
            ]
            if runs:
                points, knowledge = (spread([value(run) for run in runs]) for value in (lost_points, lost_knowledge))
                seconds = mean(float(run["prune_seconds"]) for run in runs)
                click.echo(
                    f"| {task} | {reduction:.0%} | {name} | {len(runs)} | {points} | {knowledge} | {seconds:.0f} |"
                )
    show_ratios(lines, methods)


def show_ratios(lines: Sequence[Line], methods: Sequence[str]) -> None:
    """Print what each variant loses, and how long it heals, relative to the unhealed models of the same cells."""
    plain = {(run["task"], run["seed"], run["reduction"]): run for run in lines if run["method"] == PLAIN}
    whole = whole_runs(lines)
    click.echo(
        "\n| removed | method | cells | points lost, of unhealed | knowledge lost, mean of ratios | time, of pruning |"
    )
    click.echo("|---|---|---|---|---|---|")
    for reduction in sorted({line["reduction"] for line in lines}):
        for name in methods[1:]:
            runs = [run for run in lines if run["method"] == name and run["reduction"] == reduction]
            pairs = [(run, plain[key]) for run in runs if (key := (run["task"], run["seed"], reduction)) in plain]
            if not pairs:
                continue
            points = sum(lost_points(run) for run, _ in pairs) / sum(lost_points(other) for _, other in pairs)
            knowledge = mean(lost_knowledge(run) / lost_knowledge(other) for run, other in pairs)
            shares = [
                run["heal_seconds"] / whole[run["task"], run["seed"]]
                for run, _ in pairs
                if "heal_seconds" in run and (run["task"], run["seed"]) in whole
            ]
            time = f"{mean(shares):.2f}" if shares else "–"
            click.echo(f"| {reduction:.0%} | {name} | {len(pairs)} | {points:.2f} | {knowledge:.2f} | {time} |")


@click.command()
@click.argument("results", type=click.Path(path_type=Path))
@click.option("--model", "models", multiple=True, metavar="TASK=MODEL")
@click.option("--data", help="Folder with the data sets.  [default: the hub]")
@click.option(
    "--heal", "variants", multiple=True, default=("heal=4x",), show_default=True, help="Settings of a variant."
)
@click.option("--reduction", "reductions", multiple=True, type=float, default=(0.8, 0.9, 0.6), show_default=True)
@click.option("--seed", "seeds", multiple=True, type=int, default=(0, 1, 2), show_default=True)
@click.option("--tokens", default=100_000, show_default=True)
@click.option("--limit", type=int, help="Test examples, evenly spread.  [default: all]")
@click.option("--table", "is_told", is_flag=True, help="Print the existing results; run nothing.")
def main(
    results: Path,
    models: tuple[str, ...],
    data: str | None,
    variants: tuple[str, ...],
    reductions: tuple[float, ...],
    seeds: tuple[int, ...],
    tokens: int,
    limit: int | None,
    is_told: bool,
) -> None:
    """Prune models, heal them, and print what each loses."""
    if not is_told:
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        methods = (PLAIN, *(f"{PLAIN} {variant}" for variant in variants))
        chosen = {task: model for task, _, model in (each.partition("=") for each in models)}
        append_result(results.with_suffix(".commands.jsonl"), provenance())
        for seed in seeds:  # a whole seed of all tasks before the next one
            grid = Grid(chosen, methods, reductions, (seed,), tokens, data, limit)
            compare(grid, results, finished=lambda line: click.echo(json.dumps(line)[:160]))
    show([line for line in read_runs(results) if "error" not in line])


if __name__ == "__main__":
    main()
