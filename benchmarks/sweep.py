"""The time of a sweep of six reductions, in units of one prune at the middle reduction.

    python benchmarks/sweep.py --model MODEL --text sentences.txt --out benchmarks/results/sweep.json

Both are whole jobs: they load the model, draw the sample, and prune; the single run also saves. The sweep's evaluations
and timings are subtracted, as a single run makes none. The two jobs take turns, and the result is the median ratio.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import click
from machine import provenance

from kprune import PruneConfig, RunConfig, Source
from kprune.jobs.data_options import DataOptions
from kprune.jobs.preparation import Prepared, prepare
from kprune.jobs.prune_checkpoint import prune_checkpoint
from kprune.jobs.sweep import REDUCTIONS, SweepPlan, sweep

LIMIT = 2.0
MIDDLE = 0.5 * (REDUCTIONS[2] + REDUCTIONS[3])


def prepared_for(model: str, data: DataOptions, config: PruneConfig) -> Prepared:
    """The model with its sample and its test."""
    source = Source(model)
    sample, test = data.sample_and_test(wants_test=True, seed=config.seed)
    return prepare(source, sample, test, config, tokens=data.tokens, device="cpu")


def seconds_of_prune(model: str, data: DataOptions) -> float:
    """Seconds of one prune at the middle reduction."""
    started = perf_counter()
    config = PruneConfig(reduction=MIDDLE, pooling=Source(model).pooling)
    with TemporaryDirectory() as folder:
        prune_checkpoint(_untested(prepared_for(model, data, config)), config, out=Path(folder) / "small")
    return perf_counter() - started


def _untested(prepared: Prepared) -> Prepared:
    prepared.test = None
    return prepared


def seconds_of_sweep(model: str, data: DataOptions) -> tuple[float, float]:
    """Seconds of a sweep without its evaluations and timings, and seconds of these."""
    started = perf_counter()
    config = PruneConfig(pooling=Source(model).pooling)
    with TemporaryDirectory() as folder:
        prepared = prepared_for(model, data, config)
        lines = sweep(prepared, config, SweepPlan(seconds=0.0), Path(folder) / "sweep.jsonl", run=RunConfig())
    tests = sum(line["evaluation_seconds"] + line["timing_seconds"] for line in lines[1:])
    return perf_counter() - started - tests, tests


@click.command()
@click.option("--model", required=True, help="Folder of a model.")
@click.option("--text", type=click.Path(path_type=Path), help="Text file.")
@click.option("--task", help="Instead of --text: a task.")
@click.option("--data", help="Folder of the task's data.")
@click.option("--tokens", default=25_000, show_default=True)
@click.option("--limit", default=200, show_default=True, help="Rows of the test.")
@click.option("--repeat", default=3, show_default=True)
@click.option("--out", type=click.Path(path_type=Path))
def main(
    model: str, text: Path | None, task: str | None, data: str | None, tokens: int, limit: int, repeat: int, out: Path
) -> None:
    options = DataOptions(text=text, task=task, table=data, tokens=tokens, limit=limit)
    runs = []
    for _ in range(repeat):
        alone = seconds_of_prune(model, options)
        swept, tests = seconds_of_sweep(model, options)
        runs.append({"prune": alone, "sweep": swept, "evaluations": tests, "ratio": swept / alone})
        print(json.dumps({name: round(value, 2) for name, value in runs[-1].items()}), flush=True)
    ratio = median(run["ratio"] for run in runs)
    print(f"a sweep of {len(REDUCTIONS)} reductions takes {ratio:.2f} × one prune at {MIDDLE:g} (limit {LIMIT:g})")
    if out is not None:
        result = {**provenance(), "model": Path(model).name, "tokens": tokens, "runs": runs, "ratio": ratio}
        out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
