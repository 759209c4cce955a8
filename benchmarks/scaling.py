"""Speed-up of two processes over one, with one thread each.

    python benchmarks/scaling.py --out benchmarks/results/scaling.json

The model has the shape of all-MiniLM-L6-v2 and random weights, which do not change the time. The sample has mixed
lengths. Runs of one process and of two take turns, and the result is the ratio of their medians. All runs must keep the
same units, although many units have nearly equal scores with random weights.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click
import torch
from cost import SHAPES, batches_of
from machine import provenance
from transformers import BertConfig, BertForSequenceClassification

from kprune import prune
from kprune.runtime.distributed import process_group, rank


def run(layers: int, tokens: int, criterion: str) -> None:
    """Prune in this process group; rank 0 prints the seconds and the kept units."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = BertForSequenceClassification(BertConfig(vocab_size=2000, num_hidden_layers=layers, **SHAPES["minilm"]))
    batches = batches_of(tokens, 32)
    with process_group():
        began = perf_counter()
        pruned = prune(model, batches, reduction=0.6, criterion=criterion)
        if rank() == 0:
            kept = [step.kept for step in pruned.steps]
            click.echo(json.dumps({"seconds": perf_counter() - began, "kept": kept}))


def started(processes: int, case: dict[str, Any]) -> dict[str, Any]:
    """Output of a run with several processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [sys.executable, *launcher, __file__, "--inner", json.dumps(case)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@click.command()
@click.option("--layers", default=6, show_default=True)
@click.option("--tokens", default=20_000, show_default=True)
@click.option("--criterion", default="compensated", show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--out", type=click.Path(path_type=Path))
@click.option("--inner", hidden=True)
def main(inner: str | None, repeats: int, out: Path | None, **case: Any) -> None:
    """Print the seconds of both, and their ratio; fail if it is below 1.7 or if the units differ."""
    if inner:
        run(**json.loads(inner))
        return
    seconds: dict[int, list[float]] = {1: [], 2: []}
    kept: list[set[tuple[int, int]]] = []
    for _ in range(repeats):
        for processes, found in seconds.items():
            result = started(processes, case)
            found.append(round(result["seconds"], 2))
            kept.append({(place, unit) for place, units in enumerate(result["kept"]) for unit in units})
            click.echo(f"{processes} processes: {found[-1]} s")
    same = len(set.intersection(*kept)) / len(kept[0])
    ratio = round(median(seconds[1]) / median(seconds[2]), 3)
    click.echo(f"{ratio} times as fast, {same:.3%} of the units that stay are the same")
    if out:
        result = {**case, "seconds": seconds, "ratio": ratio, "least": 1.7, "same_units": same}
        out.write_text(json.dumps({**result, **provenance()}, indent=1) + "\n")
    if same < 1:
        raise click.ClickException(f"only {same:.3%} of the units that stay are the same.")
    if ratio < 1.7:
        raise click.ClickException(f"two processes are {ratio} times as fast as one, less than 1.7.")


if __name__ == "__main__":
    main()
