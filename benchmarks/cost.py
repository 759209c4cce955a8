"""Time and peak memory of pruning, with time in units of one dense pass.

    python benchmarks/cost.py --out benchmarks/results/cost.json

T is one dense forward and mask-backward pass over the sample: the gradient of every unit's mask and no other gradient.
Time is reported as a multiple of T. The speed of a shared machine changes within minutes. The dense pass is therefore
made during the run, batch by batch, so that both meet the same conditions. The result is the median of three runs.
(Cases that measure memory have one run, and a dense pass after it.)

Memory is the peak of the process beyond the loaded model and the two streams, in a separate run. Weights are random,
which does not change the time. The sample has inputs of mixed length. Every case runs in a separate process.

Two shares of the run's time are reported too: greedy removal by the criterion `compensated`, by the clock, and time
outside matrix products, by a profile of one more run.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from types import ModuleType
from typing import Any

import click
import torch
from machine import provenance
from transformers import BertConfig, BertForSequenceClassification

from kprune import Progress, PruneConfig, Pruned, prune
from kprune.maths import unit_statistics
from kprune.models.hooks import masked
from kprune.models.outputs import kind_of
from kprune.models.sublayer import find
from kprune.pruning.sampling import sample_for

SHAPES: dict[str, dict[str, Any]] = {
    "minilm": {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536},
    "bert-base": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
}
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product", "mkldnn_linear", "cholesky", "triangular", "solve")
"""Parts of the names of operators that multiply matrices or solve linear systems."""


LIMITS_IN_T = {("compensated", 6): 4.0, ("compensated", 12): 4.5, ("fisher", 6): 7.7, ("fisher", 12): 15.0}
"""By criterion and number of layers; for `fisher`, 1.15 × what the single-query algebra reached."""
LIMIT_OUTSIDE_PRODUCTS = 0.25
LIMIT_MEGABYTES = 600
"""Beyond the streams, on 6 layers of MiniLM's shape."""


def batches_of(tokens: int, mean_length: int) -> list[dict[str, torch.Tensor]]:
    """Inputs of mixed length, about `tokens` tokens in all."""
    generator = torch.Generator().manual_seed(0)
    batches, total = [], 0
    while total < tokens:
        length = int(torch.randint(mean_length // 2, 3 * mean_length // 2 + 1, (1,), generator=generator))
        batches.append({"input_ids": torch.randint(1000, 2000, (1, length), generator=generator)})
        total += length
    return batches


def present_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(
    shape: str, layers: int, tokens: int, length: int, criterion: str, reduction: float, repeat: int, profile: bool
) -> dict[str, Any]:
    """Time and memory of one run, in this process."""
    torch.manual_seed(0)
    config = BertConfig(vocab_size=2000, num_hidden_layers=layers, **SHAPES[shape])
    model = BertForSequenceClassification(config).eval()
    batches = batches_of(tokens, length)
    for parameter in model.parameters():  # touch every page: an untouched weight is not in memory yet
        parameter.data.add_(0.0)
    loaded = present_megabytes()

    def run(progress: Callable[[Progress], None] = lambda progress: None) -> Pruned:
        return prune(model, batches, reduction=reduction, criterion=criterion, progress=progress)

    with stopwatch(unit_statistics, "removal_costs") as greedy:
        began = perf_counter()
        pruned = run()
        seconds = perf_counter() - began
    peak = peak_megabytes()  # of the first run only: later runs cannot lower it
    dense = DensePass(model, batches)
    timed = [beside(run, dense) for _ in range(repeat)] or [(seconds, dense.rest([]))]
    ratios = [run_seconds / dense_seconds for run_seconds, dense_seconds in timed]
    streams = 2 * pruned.tokens * config.hidden_size * 4 / 2**20
    return {
        "shape": shape,
        "layers": layers,
        "criterion": criterion,
        "reduction": reduction,
        "tokens": pruned.tokens,
        "T_seconds": [round(dense_seconds, 2) for _, dense_seconds in timed],
        "run_in_T": round(median(ratios), 2),
        "runs_in_T": [round(ratio, 2) for ratio in ratios],
        "share_of_greedy_removal": round(sum(greedy) / seconds, 4),
        "share_outside_products": round(outside_products(run), 3) if profile else None,
        "megabytes_above_model": round(peak - loaded),
        "megabytes_of_streams": round(streams),
        "megabytes_beyond_streams": round(peak - loaded - streams),
    }


@contextmanager
def stopwatch(module: ModuleType, name: str) -> Iterator[list[float]]:
    """Record the seconds of every call of a module's function."""
    function, spent = getattr(module, name), []

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent.append(perf_counter() - began)

    setattr(module, name, timed)
    try:
        yield spent
    finally:
        setattr(module, name, function)


def outside_products(run: Callable[[], object]) -> float:
    """Share of a run's time outside matrix products, including Python."""
    began = perf_counter()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        run()
        seconds = perf_counter() - began
    products = sum(
        event.self_cpu_time_total
        for event in profiler.key_averages()
        if event.key.startswith("aten::") and any(name in event.key for name in PRODUCTS)
    )
    return 1.0 - float(products) / 1e6 / seconds


class DensePass:
    """T: the plain model on the same batches, with one mask per example and unit."""

    def __init__(self, model: BertForSequenceClassification, batches: list[dict[str, torch.Tensor]]) -> None:
        self.model = model.requires_grad_(False)
        self.batches = sample_for(model, kind_of(model), batches, PruneConfig(refresh=1)).batches
        self.sublayers = find(model)

    @torch.enable_grad()
    def seconds(self, number: int) -> float:
        """Seconds of one batch."""
        batch = self.batches[number]
        began = perf_counter()
        masks = {s: torch.ones(len(batch.example), 1, s.units, requires_grad=True) for s in self.sublayers}
        with masked(masks):
            logits = self.model(**batch.inputs).logits
        loss = torch.nn.functional.cross_entropy(logits, logits.argmax(1), reduction="sum")
        torch.autograd.grad(loss, list(masks.values()))
        return perf_counter() - began

    def rest(self, spent: list[float]) -> float:
        """Seconds of the whole pass, given the seconds of the batches already done."""
        return sum(spent) + sum(self.seconds(number) for number in range(len(spent), len(self.batches)))


def beside(run: Callable[[Callable[[Progress], None]], object], dense: DensePass) -> tuple[float, float]:
    """Seconds of a run, and of a dense pass made during it, batch by batch."""
    spent: list[float] = []

    def keep_up(progress: Progress) -> None:
        while len(spent) < progress.fraction * len(dense.batches):
            spent.append(dense.seconds(len(spent)))

    began = perf_counter()
    run(keep_up)
    seconds = perf_counter() - began - sum(spent)
    return seconds, dense.rest(spent)


def is_over(line: dict[str, Any]) -> bool:
    """Whether a case exceeds a limit."""
    outside = line["share_outside_products"]
    return bool(
        line["run_in_T"] > LIMITS_IN_T.get((line["criterion"], line["layers"]), float("inf"))
        or (outside is not None and outside > LIMIT_OUTSIDE_PRODUCTS)
        or (line["layers"] == 6 and line["megabytes_beyond_streams"] > LIMIT_MEGABYTES)
    )


CASES: list[dict[str, Any]] = [
    {"shape": "minilm", "layers": 6, "tokens": 20_000, "length": 32, "repeat": 3, "profile": True},
    {"shape": "minilm", "layers": 6, "tokens": 100_000, "length": 32, "repeat": 0, "profile": False},
    {"shape": "minilm", "layers": 12, "tokens": 20_000, "length": 32, "repeat": 3, "profile": False},
    {"shape": "minilm", "layers": 3, "tokens": 20_000, "length": 32, "repeat": 0, "profile": False},
    {"shape": "bert-base", "layers": 3, "tokens": 20_000, "length": 32, "repeat": 0, "profile": True},
    {"shape": "bert-base", "layers": 1, "tokens": 100_000, "length": 32, "repeat": 0, "profile": False},
    {"shape": "bert-base", "layers": 12, "tokens": 20_000, "length": 32, "repeat": 1, "profile": False},
]


def run_case(checkout: Path, case: dict[str, Any]) -> dict[str, Any]:
    """One case, measured by the cost.py of a checkout with that checkout's kprune."""
    script = checkout / "benchmarks/cost.py"
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, str(script), "--inner", json.dumps(case)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    line: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return line


def ratios(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """Time in T and memory above the model, relative to the other version's."""
    names = ("run_in_T", "megabytes_above_model")
    return {name: round(ours[name] / theirs[name], 3) for name in names}


@click.command()
@click.option("--criterion", default="compensated", show_default=True)
@click.option("--reduction", default=0.6, show_default=True)
@click.option("--case", "cases", type=int, multiple=True, help="Numbers of cases, from 0.  [default: all]")
@click.option("--once", is_flag=True, help="Time each case once instead of three times.")
@click.option("--out", type=click.Path(path_type=Path))
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A checkout of another version: its own cost.py measures each case in turn, and ratios are printed.",
)
@click.option("--inner", hidden=True)
def main(
    criterion: str,
    reduction: float,
    cases: tuple[int, ...],
    once: bool,
    out: Path | None,
    against: Path | None,
    inner: str | None,
) -> None:
    """Measure each case in a separate process, and print one JSON line per case."""
    if inner:
        click.echo(json.dumps(measure(**json.loads(inner))))
        return
    lines = []
    for number in cases or range(len(CASES)):
        case = {**CASES[number], "criterion": criterion, "reduction": reduction}
        case["repeat"] = min(case["repeat"], 1) if once else case["repeat"]
        lines.append(run_case(Path(__file__).parents[1], case))
        if against is not None:
            lines[-1]["against"] = run_case(against, case)
            lines[-1]["ratios"] = ratios(lines[-1], lines[-1]["against"])
        click.echo(json.dumps(lines[-1]))
    over = [line for line in lines if is_over(line)]
    if out:
        out.write_text(json.dumps({"cases": lines, **provenance()}, indent=1) + "\n")
    if over:
        raise click.ClickException(f"over the limits of time, of what is no product, or of memory: {over}")


if __name__ == "__main__":
    main()
