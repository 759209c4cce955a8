"""What each criterion costs in fidelity: the dense model's predictions against the pruned one's, on held-out text.

    python benchmarks/criteria.py --model MODEL --data DATA --subset sst2 --column sentence --label label \
        --reduction 0.6 --reduction 0.8 --seeds 3 --tokens 25000 --out benchmarks/results/criteria-sst2.jsonl

A sample is drawn from the train split by seed, the same for every criterion; figures are on the validation split. One
JSON line per run. Divergence and agreement need no labels; accuracy (of a classifier) needs `--label`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch
import transformers
from machine import provenance
from torch import Tensor
from transformers import PreTrainedModel

from kprune import prune
from kprune.data import Row, draw, longest_input, read_rows
from kprune.knowledge import divergence, squared_error
from kprune.observe import forward
from kprune.outputs import OutputKind, kind_of
from kprune.sample import Sample, examples_of, regroup
from kprune.settings import CRITERIA
from kprune.store import Source, fetch


@torch.no_grad()
def predictions(model: PreTrainedModel, kind: OutputKind, sample: Sample) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Values, weights and example numbers of every row, batch by batch."""
    read = [kind.read(forward(model, batch), batch) for batch in sample.batches]
    return [(rows.values, rows.weights, rows.example) for rows in read]


def fidelity(kind: OutputKind, dense: list[Any], pruned: list[Any], labels: list[int] | None) -> dict[str, float]:
    """Mean loss of knowledge per example at temperature 1, agreement of the most likely classes, accuracy."""
    lost, agree, right, rows, examples = 0.0, 0.0, 0.0, 0, set()
    for (expected, weights, numbers), (values, _, _) in zip(dense, pruned, strict=True):
        loss = (
            divergence(values, expected, weights, 1.0)
            if kind.is_distribution
            else squared_error(values, expected, weights)
        )
        lost += float(loss.sum())
        agree += float((values.argmax(-1) == expected.argmax(-1)).sum())
        rows += len(values)
        examples |= set(numbers.tolist())
        if labels is not None:
            right += float((values.argmax(-1) == torch.tensor([labels[n] for n in numbers.tolist()])).sum())
    figures = {"lost": lost / len(examples)}
    if kind.is_distribution:
        figures["agreement"] = 100 * agree / rows
    if labels is not None:
        figures["accuracy"] = 100 * right / len(examples)
    return figures


def held_out(
    source: Source, model: PreTrainedModel, tokenizer: Any, rows: list[Row], labels: list[int] | None, limit: int
) -> tuple[Sample, list[int] | None]:
    """The first `limit` rows of the validation split, as a sample."""
    length = min(longest_input(tokenizer, model.config), source.max_length or 10**9)
    chosen = rows[:limit]
    encoded = [tokenizer(*row, truncation=True, max_length=length, return_tensors="pt") for row in chosen]
    sample = regroup(examples_of(encoded), tokens=4096, pad_id=model.config.pad_token_id, device=model.device)
    return sample, labels[:limit] if labels else None


@click.command()
@click.option("--model", "name", required=True)
@click.option("--data", required=True)
@click.option("--subset")
@click.option("--column", "columns", multiple=True)
@click.option("--label")
@click.option("--validation", default="validation", show_default=True)
@click.option("--limit", default=2000, show_default=True, help="Validation rows.")
@click.option("--criterion", "criteria", multiple=True, default=list(CRITERIA), show_default=True)
@click.option("--rep-weight", "rep_weights", multiple=True, type=float, help="Several are tried one by one.")
@click.option("--head-weight", type=float)
@click.option("--reduction", "reductions", multiple=True, type=float, required=True)
@click.option("--seeds", default=3, show_default=True)
@click.option("--tokens", default=25_000, show_default=True)
@click.option("--out", type=click.Path(path_type=Path))
def main(name: str, data: str, subset: str | None, columns: tuple[str, ...], label: str | None, **options: Any) -> None:
    """Prune one model by several criteria and print what each lost."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    source = Source(fetch(name))
    model, tokenizer = source.load().float(), source.load_tokenizer()
    kind = kind_of(model, pooling=source.pooling)
    train = read_rows(data, columns, subset=subset)
    rows = read_rows(data, columns, subset=subset, split=options["validation"])
    labels = None
    if label:
        import datasets

        labels = datasets.load_dataset(data, subset, split=options["validation"])[label]
        if len(labels) != len(rows):
            raise click.ClickException("some validation rows are blank, so labels cannot be told apart; clean the data")
    sample, labels = held_out(source, model, tokenizer, rows, labels, options["limit"])
    dense = predictions(model, kind, sample)
    report = {"dense": fidelity(kind, dense, dense, labels)}
    click.echo(json.dumps(report))
    for seed in range(options["seeds"]):
        length = min(longest_input(tokenizer, model.config), source.max_length or 10**9)
        batches = draw(train, tokenizer, tokens=options["tokens"], max_length=length, seed=seed)
        for reduction in options["reductions"]:
            for criterion in options["criteria"]:
                for rep_weight in options["rep_weights"] or (None,):
                    pruned = prune(
                        model,
                        batches,
                        reduction=reduction,
                        criterion=criterion,
                        rep_weight=rep_weight,
                        head_weight=options["head_weight"],
                        pooling=source.pooling,
                        seed=seed,
                    )
                    figures = fidelity(kind, dense, predictions(pruned.model, kind, sample), labels)
                    kept = [len(step.kept) for step in pruned.steps]
                    line = {**asdict(pruned.settings), "tokens": pruned.tokens, **figures, "kept": kept}
                    line["seconds"] = round(pruned.seconds, 1)
                    click.echo(json.dumps(line))
                    if options["out"]:
                        with options["out"].open("a") as file:
                            file.write(json.dumps({**line, "model": source.folder.name, **provenance()}) + "\n")


if __name__ == "__main__":
    main()
