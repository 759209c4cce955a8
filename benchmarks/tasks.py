"""What pruning costs on real tasks: dense against several reductions, with intervals and paired tests.

    python benchmarks/tasks.py --model sst2=MODEL --model stsb=MODEL --model squad=MODEL --data DATA \
        --reduction 0.4 --reduction 0.6 --reduction 0.8 --tokens 25000 --out benchmarks/results/tasks.jsonl

Samples are drawn from each task's train split by seed, figures are on the whole validation split, and the table is
printed in Markdown. Each run adds a JSON line, with the share of its time that was spent in forward passes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import transformers
from machine import provenance

from kprune import Evaluation, Pruner, evaluate, load_task
from kprune.data import draw, longest_input
from kprune.metrics import Difference, Figure
from kprune.store import Source, fetch
from kprune.tasks import EMBEDDING, TASKS, read_test, task_table


def runs_of(name: str, folder: str, options: dict[str, Any]) -> Any:
    """A line for each reduction of one task's model."""
    task = TASKS[name]
    source = Source(fetch(folder))
    model, tokenizer = source.load().float(), source.load_tokenizer()
    rows = read_test(task_table(task, task.train, options["data"]), task.texts, name=name).rows
    if task.kind == EMBEDDING:
        rows = [(text,) for row in rows for text in row]
    length = min(longest_input(tokenizer, model.config), source.max_length or 10**9)
    batches = draw(rows, tokenizer, tokens=options["tokens"], max_length=length, seed=options["seed"])
    pruner = Pruner(model, batches, pooling=source.pooling, seed=options["seed"])
    test = load_task(name, data=options["data"], limit=options["limit"])
    for reduction in options["reductions"]:
        pruned = pruner.prune(reduction)
        result = evaluate(
            pruned.model, tokenizer, test, against=model, pooling=source.pooling, max_length=source.max_length
        )
        yield (
            {
                "task": name,
                "model": source.folder.name,
                "reduction": reduction,
                "tokens": pruned.tokens,
                "prune_seconds": round(pruned.seconds, 1),
                "share_of_time_in_forward": round(result.forward_seconds / result.seconds, 4),
                **result.as_json(),
            },
            result,
        )


def told(figure: Figure | Difference, sign: str = "") -> str:
    digits = 3 if figure.name == "divergence" else 2
    return f"{figure.value:{sign}.{digits}f} ({figure.low:{sign}.{digits}f} to {figure.high:{sign}.{digits}f})"


def row(line: dict[str, Any], result: Evaluation) -> str:
    figure, dense, gap = result.figures[0], result.against[0], result.differences[0]
    cells = [
        f"{line['task']}, {figure.name}",
        f"{line['reduction']:.0%}",
        told(dense),
        told(figure),
        told(gap, "+"),
        f"{gap.p_value:.3f}",
        f"{result.fidelity[0].name} {result.fidelity[0].value:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


@click.command()
@click.option("--model", "models", multiple=True, required=True, metavar="TASK=FOLDER")
@click.option("--data", help="Folder with the data sets.  [default: the hub]")
@click.option("--reduction", "reductions", multiple=True, type=float, default=[0.4, 0.6, 0.8], show_default=True)
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
