"""Perplexity of pruned language models: the paper's appendix on OPT, for any decoder, beside the rivals.

    python benchmarks/opt.py benchmarks/results/opt.jsonl                       # OPT-1.3B on C4, as in the paper
    python benchmarks/opt.py results.jsonl --model MODEL --sample c4-train.jsonl --test wikitext2 --test c4-test.jsonl

The sample is drawn from C4's train split by seed, or from a file; tests are tasks or files. Each test is cut into
windows of 1,024 tokens. A cell is one method, reduction and seed; it adds a JSON line with command, commit and machine.
A stopped run continues with the missing cells. `--heal 4x` also heals every model of `kprune`. `--table` only prints.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import click
import transformers
from criteria import spread
from machine import provenance

from kprune import HealConfig, PruneConfig, evaluate
from kprune.checkpoints.names import short_name
from kprune.checkpoints.source import Source, fetch
from kprune.data.readers import READERS
from kprune.data.tasks import TASKS, Test, load_task
from kprune.jobs.data_options import DataOptions
from kprune.jobs.grid import parse_method
from kprune.jobs.preparation import Prepared, prepare
from kprune.jobs.prune_checkpoint import prune_checkpoint
from kprune.jobs.results import append_result

Line = dict[str, Any]
OPT = "facebook/opt-1.3b"
METHODS = ("kprune", "kprune criterion=fisher", "flap", "wanda-sp", "magnitude", "random")
REDUCTIONS = (0.05, 0.1, 0.15, 0.2, 0.3)
BLOCKS = 128
"""Blocks of 256 tokens in the sample; the paper takes 128 sentences of C4."""
PLAIN = "kprune"


@dataclass(frozen=True)
class Cell:
    """One pruned model; `method` "dense" is the model itself."""

    model: str
    method: str
    heal: str | None
    reduction: float
    seed: int
    tokens: int


def text_named(name: str, data: str | None, *, is_sample: bool) -> Test:
    """The text of a task's train split or test, or of a file."""
    if name in TASKS:
        return load_task(name, data=data, split=TASKS[name].train if is_sample else None)
    is_table = Path(name).suffix in READERS
    options = DataOptions(table=name) if is_table else DataOptions(text=Path(name))
    return options.sample_and_test(wants_test=False, seed=0)[0]


def perplexities(model: Any, prepared: Prepared, tests: Sequence[Test], limit: int | None) -> Iterator[tuple[str, Any]]:
    """The perplexity on each test, with its interval."""
    for test in tests:
        test = replace(test, windows=replace(test.windows, most=limit or test.windows.most))
        result = evaluate(model, prepared.tokenizer, test)
        yield test.name, result.as_json()["figures"][0]


def run_cell(cell: Cell, prepared: Prepared, tests: Sequence[Test], limit: int | None) -> Line:
    """The line of a cell."""
    line: Line = {**cell.__dict__, **provenance()}
    if cell.method == "dense":
        return {**line, "perplexity": dict(perplexities(prepared.model, prepared, tests, limit))}
    name, settings = parse_method(cell.method)
    config = PruneConfig(method=name, reduction=cell.reduction, seed=cell.seed, **settings)
    heal = None if cell.heal is None else HealConfig(heal=cell.heal, seed=cell.seed)
    pruned = prune_checkpoint(prepared, config, heal=heal).result
    return {
        **line,
        "perplexity": dict(perplexities(pruned.model, prepared, tests, limit)),
        "settings": pruned.config.as_json(),
        "kept": [len(step.kept) for step in pruned.steps],
        "flops": list(pruned.flops),
        "sample_tokens": pruned.tokens,
        "prune_seconds": round(pruned.seconds, 1),
    }


def cells_of(grid: dict[str, Any], model: str, seed: int) -> list[Cell]:
    """The cells of one seed: the dense model, every method and reduction, and the healed models of kprune."""
    tokens, heal = grid["tokens"], grid["heal"]
    kinds = [(method, None) for method in grid["methods"]] + ([(PLAIN, heal)] if heal else [])
    cells = [
        Cell(model, method, healing, reduction, seed, tokens)
        for reduction, (method, healing) in product(grid["reductions"], kinds)
    ]
    return [Cell(model, "dense", None, 0.0, seed, tokens), *cells]


def read_lines(path: Path) -> list[Line]:
    """The lines of a results file, if there is one."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def run_grid(path: Path, grid: dict[str, Any]) -> None:
    """Run the cells that the file has no line of."""
    source = Source(fetch(grid["model"]), name=grid["model"])
    model = short_name(grid["model"])
    tests = [text_named(name, grid["data"], is_sample=False) for name in grid["tests"]]
    sample = text_named(grid["sample"], grid["data"], is_sample=True)
    for seed in grid["seeds"]:
        done = [Cell(**{name: line[name] for name in Cell.__dataclass_fields__}) for line in read_lines(path)]
        open_cells = [cell for cell in cells_of(grid, model, seed) if cell not in done]
        if not open_cells:
            continue
        held_out = HealConfig().held_out if grid["heal"] else 0.0
        prepared = prepare(
            source, sample, None, PruneConfig(seed=seed), tokens=grid["tokens"], in_float32=True, held_out=held_out
        )
        for cell in open_cells:
            line = run_cell(cell, prepared, tests, grid["limit"])
            append_result(path, line)
            click.echo(f"{cell}: " + ", ".join(f"{k} {v['value']:.2f}" for k, v in line["perplexity"].items()))


def show(lines: Sequence[Line]) -> None:
    """Print perplexities by model, reduction and method: the mean of the seeds and its 95 % interval."""
    names = list(dict.fromkeys(name for line in lines for name in line["perplexity"]))
    click.echo(f"| model | tokens | removed | method | seeds | {' | '.join(names)} |")
    click.echo("|---" * (5 + len(names)) + "|")
    keys = sorted(
        {(line["model"], line["tokens"], line["reduction"], line["method"], line["heal"] or "") for line in lines}
    )
    for key in keys:
        model, tokens, reduction, method, heal = key
        runs = [
            line
            for line in lines
            if (line["model"], line["tokens"], line["reduction"], line["method"], line["heal"] or "") == key
        ]
        values = [
            spread([run["perplexity"][name]["value"] for run in runs if name in run["perplexity"]]) for name in names
        ]
        label = f"{method}, healed {heal}" if heal else method
        click.echo(f"| {model} | {tokens:,} | {reduction:.0%} | {label} | {len(runs)} | {' | '.join(values)} |")
    seconds = [line["prune_seconds"] for line in lines if "prune_seconds" in line]
    if seconds:
        click.echo(f"\n{len(lines)} lines; {mean(seconds):.0f} s per pruned model in the mean")


@click.command()
@click.argument("results", type=click.Path(path_type=Path))
@click.option("--model", default=OPT, show_default=True)
@click.option("--sample", default="c4", show_default=True, help="Task or file to calibrate on.")
@click.option("--test", "tests", multiple=True, default=("wikitext2", "c4"), show_default=True, help="Task or file.")
@click.option("--data", help="Folder with the data sets.  [default: the hub]")
@click.option("--method", "methods", multiple=True, default=METHODS, show_default=True)
@click.option("--reduction", "reductions", multiple=True, type=float, default=REDUCTIONS, show_default=True)
@click.option("--seed", "seeds", multiple=True, type=int, default=(0, 1, 2), show_default=True)
@click.option("--tokens", default=BLOCKS * 256, show_default=True)
@click.option("--limit", type=int, help="Windows per test.  [default: the task's]")
@click.option("--heal", help="Also heal the models of kprune, such as 4x or 10m.")
@click.option("--table", "only_table", is_flag=True, help="Print the existing results; run nothing.")
def main(results: Path, only_table: bool, **grid: Any) -> None:
    """Prune a language model with every method, and print its perplexities."""
    if not only_table:
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        run_grid(results, grid)
    show(read_lines(results))


if __name__ == "__main__":
    main()
