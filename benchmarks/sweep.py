"""The time of a sweep of six reductions, in units of one prune at the middle reduction.

    python benchmarks/sweep.py --model MODEL --text sentences.txt --out benchmarks/results/sweep.json

Both are whole jobs: they load the model, draw the sample, and prune; the single run also saves. The sweep's evaluations
and timings are subtracted, as a single run makes none. The two jobs take turns, and the result is the median ratio.
Times are of the processor (all threads), so that other load on the machine changes them little.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import click
from machine import provenance

from kprune import PruneConfig, RunConfig, Source
from kprune.jobs.data_options import DataOptions
from kprune.jobs.preparation import Prepared, prepare
from kprune.jobs.prune_checkpoint import prune_checkpoint
from kprune.jobs.sweep import REDUCTIONS, SweepPlan, sweep
from kprune.pruning.progress import Progress

LIMIT = 2.0
MIDDLE = 0.5 * (REDUCTIONS[2] + REDUCTIONS[3])


def prepared_for(model: str, data: DataOptions, config: PruneConfig) -> Prepared:
    """The model with its sample and its test."""
    source = Source(model)
    sample, test = data.sample_and_test(wants_test=True, seed=config.seed)
    return prepare(source, sample, test, config, tokens=data.tokens, device="cpu")


def seconds_of_prune(model: str, data: DataOptions) -> float:
    """Processor seconds of one prune at the middle reduction."""
    started = process_time()
    config = PruneConfig(reduction=MIDDLE, pooling=Source(model).pooling)
    with TemporaryDirectory() as folder:
        prune_checkpoint(_untested(prepared_for(model, data, config)), config, out=Path(folder) / "small")
    return process_time() - started


def _untested(prepared: Prepared) -> Prepared:
    prepared.test = None
    return prepared


class TestClock:
    """Processor seconds of a sweep's evaluations and timings, by the phases that it reports."""

    def __init__(self) -> None:
        self.seconds = self._started = 0.0

    def __call__(self, progress: Progress) -> None:
        phase = progress.sublayer.rpartition(", ")[2]
        if phase == "evaluating":
            self._started = process_time()
        elif self._started and phase != "timing":
            self.seconds += process_time() - self._started
            self._started = 0.0


def seconds_of_sweep(model: str, data: DataOptions, file: Path | None) -> tuple[float, float]:
    """Processor seconds of a sweep without its evaluations and timings, and those of these; its lines go to `file`."""
    started, tests = process_time(), TestClock()
    config = PruneConfig(pooling=Source(model).pooling)
    with TemporaryDirectory() as folder:
        prepared = prepared_for(model, data, config)
        path = file or Path(folder) / "sweep.jsonl"
        sweep(prepared, config, SweepPlan(seconds=0.0), path, run=RunConfig(), advance=tests)
    return process_time() - started - tests.seconds, tests.seconds


@click.command()
@click.option("--model", required=True, help="Folder of a model.")
@click.option("--text", type=click.Path(path_type=Path), help="Text file.")
@click.option("--task", help="Instead of --text: a task.")
@click.option("--data", help="Folder of the task's data.")
@click.option("--tokens", default=100_000, show_default=True)
@click.option("--limit", default=200, show_default=True, help="Rows of the test.")
@click.option("--repeat", default=3, show_default=True)
@click.option("--lines", type=click.Path(path_type=Path), help="New file for the lines of the first sweep.")
@click.option("--out", type=click.Path(path_type=Path))
def main(model: str, repeat: int, lines: Path | None, out: Path | None, data: str | None, **of_data: Any) -> None:
    options = DataOptions(table=data, **of_data)
    runs = []
    for number in range(repeat):
        alone = seconds_of_prune(model, options)
        swept, tests = seconds_of_sweep(model, options, None if number else lines)
        runs.append({"prune": alone, "sweep": swept, "evaluations": tests, "ratio": swept / alone})
        print(json.dumps({name: round(value, 2) for name, value in runs[-1].items()}), flush=True)
    ratio = median(run["ratio"] for run in runs)
    print(f"a sweep of {len(REDUCTIONS)} reductions takes {ratio:.2f} × one prune at {MIDDLE:g} (limit {LIMIT:g})")
    if out is not None:
        result = {**provenance(), "model": Path(model).name, "tokens": options.tokens, "runs": runs, "ratio": ratio}
        out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
