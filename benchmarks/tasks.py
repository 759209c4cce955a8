"""Loss by pruning on real tasks: the dense model and several reductions, with intervals and paired tests.

    python benchmarks/tasks.py --model sst2=MODEL --model stsb=MODEL --model squad=MODEL --data DATA \
        --reduction 0.4 --reduction 0.6 --reduction 0.8 --tokens 25000 --out benchmarks/results/tasks.jsonl

Samples are drawn from each task's train split, or from the lines of `--sample`, by seed. Figures are on the whole
validation split. A text file in the place of a task (`--model sentences.txt=MODEL`) compares outputs on held-out lines,
without labels. `--method "kprune search=uniform"` changes settings. The table is printed in Markdown. Each run adds a
JSON line, with the share of its evaluation time in forward passes, the kept units, the sample's errors and, with
`native=yes`, the knowledge that its shape and the free search lose.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import transformers
from machine import provenance

from kprune import Evaluation, PruneConfig
from kprune.checkpoints.source import Source, fetch
from kprune.data.tasks import TASKS
from kprune.evaluation.metrics import Difference, Figure
from kprune.jobs.data_options import DataOptions
from kprune.jobs.grid import parse_method
from kprune.jobs.preparation import prepare
from kprune.jobs.prune_checkpoint import prune_checkpoint


def runs_of(name: str, folder: str, options: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Evaluation]]:
    """One line per method and reduction of one task's model."""
    data = DataOptions(limit=options["limit"])
    is_text = name not in TASKS
    data = replace(data, text=name) if is_text else replace(data, task=name, table=options["data"])
    sample, test = data.sample_and_test(wants_test=True, seed=options["seed"])
    if options["sample"]:
        sample, _ = DataOptions(text=options["sample"]).sample_and_test(wants_test=False, seed=options["seed"])
    source = Source(fetch(folder))
    config = PruneConfig(seed=options["seed"], pooling=source.pooling)
    prepared = prepare(source, sample, test, config, tokens=options["tokens"], in_float32=True)
    for method, reduction in product(options["methods"], options["reductions"]):
        method_name, settings = parse_method(method)
        state = prune_checkpoint(prepared, replace(config, method=method_name, reduction=reduction, **settings))
        pruned, result = state.result, state.evaluation
        assert result is not None
        line = {
            "task": Path(name).name,
            "model": source.folder.name,
            "method": method,
            "sample": Path(options["sample"]).name if options["sample"] else "train",
            "reduction": reduction,
            "tokens": pruned.tokens,
            "prune_seconds": round(pruned.seconds, 1),
            "share_of_time_in_forward": round(result.forward_seconds / result.seconds, 4),
            "kept": {
                kind: [len(step.kept) for step in pruned.steps if step.kind == kind] for kind in ("attention", "ffn")
            },
            "errors": pruned.summary()["errors"],
            **({} if pruned.native is None else {"shape": pruned.native.as_json()}),
            **result.as_json(),
        }
        yield line, result


def with_interval(figure: Figure | Difference, sign: str = "") -> str:
    digits = 3 if figure.name == "divergence" else 2
    return f"{figure.value:{sign}.{digits}f} ({figure.low:{sign}.{digits}f} to {figure.high:{sign}.{digits}f})"


def row(line: dict[str, Any], result: Evaluation) -> str:
    alike = "; ".join(f"{each.name} {with_interval(each)}" for each in result.fidelity)
    if not result.figures:
        return f"| {line['task']} | {line['reduction']:.0%} | | | | | {alike} |"
    figure, dense, gap = result.figures[0], result.against[0], result.differences[0]
    cells = [
        f"{line['task']}, {figure.name}",
        f"{line['reduction']:.0%}",
        with_interval(dense),
        with_interval(figure),
        with_interval(gap, "+"),
        f"{gap.p_value:.3f}",
        f"{result.fidelity[0].name} {result.fidelity[0].value:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


@click.command()
@click.option("--model", "models", multiple=True, required=True, metavar="TASK=FOLDER")
@click.option("--data", help="Folder with the data sets.  [default: the hub]")
@click.option("--reduction", "reductions", multiple=True, type=float, default=[0.4, 0.6, 0.8], show_default=True)
@click.option("--method", "methods", multiple=True, default=["kprune"], show_default=True)
@click.option("--sample", help="Text file to calibrate on.  [default: the task's train split]")
@click.option("--tokens", default=25_000, show_default=True)
@click.option("--limit", type=int, help="Validation rows.  [default: all]")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path))
def main(models: tuple[str, ...], out: Path | None, **options: Any) -> None:
    """Prune each task's model to each reduction, and print the table."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    click.echo("| task, metric | removed | dense | pruned | difference | p | alike |")
    click.echo("|---|---|---|---|---|---|---|")
    for model in models:
        name, _, folder = model.partition("=")
        for line, result in runs_of(name, folder, options):
            click.echo(row(line, result))
            if out:
                with out.open("a") as file:
                    file.write(json.dumps({**line, "seed": options["seed"], **provenance()}) + "\n")


if __name__ == "__main__":
    main()
