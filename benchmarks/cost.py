"""The cost of pruning, in units of one dense pass: time and peak memory, both sides in one run.

    python benchmarks/cost.py --out benchmarks/results/cost.json

T is one dense forward and mask-backward pass over the sample: every unit's gradient, none of the rest. Time is told as
a multiple of T. A shared machine's speed changes within minutes, so the pass is made beside the run, a batch now and
then as the run goes on, and both see the same weather; of three runs the median is told. (In the cases that are there
for their memory: one run, and a pass after it.) Memory is what the process holds at its peak beyond the loaded model,
beside the two streams, in a run of its own. Weights are random, which does not change the time; the sample has inputs
of mixed length. Every case has a process of its own.

Two shares of a run are told beside: of the greedy removal that the criterion `compensated` rehearses, by the clock, and
of what is no matrix product, by a profile of one more run.
"""

from __future__ import annotations

import json
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

from kprune import Progress, Pruned, compensate, prune
from kprune.observe import masked
from kprune.outputs import kind_of
from kprune.prune import sample_for
from kprune.sublayer import find

SHAPES: dict[str, dict[str, Any]] = {
    "minilm": {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536},
    "bert-base": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
}
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product", "mkldnn_linear", "cholesky", "triangular", "solve")
"""What operators are called that multiply matrices, or solve with them."""


LIMITS_IN_T = {("compensated", 6): 4.0, ("compensated", 12): 4.5, ("fisher", 6): 6.8, ("fisher", 12): 13.0}
"""By criterion and number of layers."""
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

    with stopwatch(compensate, "removal_costs") as greedy:
        began = perf_counter()
        pruned = run()
        seconds = perf_counter() - began
    peak = peak_megabytes()  # of the first run alone: later ones could only hide behind it
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
    """The seconds of every call of a module's function."""
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
    """The share of a run's time that is spent in anything but matrix products, Python included."""
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
    """T: the plain model on our batches, with a mask of each example's own on every unit."""

    def __init__(self, model: BertForSequenceClassification, batches: list[dict[str, torch.Tensor]]) -> None:
        self.model = model.requires_grad_(False)
        self.batches = sample_for(model, kind_of(model), batches).batches
        self.sublayers = find(model)

    @torch.enable_grad()
    def seconds(self, number: int) -> float:
        """The time that one batch takes."""
        batch = self.batches[number]
        began = perf_counter()
        masks = {s: torch.ones(len(batch.example), 1, s.units, requires_grad=True) for s in self.sublayers}
        with masked(masks):
            logits = self.model(**batch.inputs).logits
        loss = torch.nn.functional.cross_entropy(logits, logits.argmax(1), reduction="sum")
        torch.autograd.grad(loss, list(masks.values()))
        return perf_counter() - began

    def rest(self, spent: list[float]) -> float:
        """The time of the whole pass, of which some batches were made already."""
        return sum(spent) + sum(self.seconds(number) for number in range(len(spent), len(self.batches)))


def beside(run: Callable[[Callable[[Progress], None]], object], dense: DensePass) -> tuple[float, float]:
    """Seconds of a run, and of a dense pass that is made meanwhile, batch by batch as the run goes on."""
    spent: list[float] = []

    def keep_up(progress: Progress) -> None:
        while len(spent) < progress.fraction * len(dense.batches):
            spent.append(dense.seconds(len(spent)))

    began = perf_counter()
    run(keep_up)
    seconds = perf_counter() - began - sum(spent)
    return seconds, dense.rest(spent)


def is_over(line: dict[str, Any]) -> bool:
    """Whether a case takes more than it may."""
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
]


@click.command()
@click.option("--criterion", default="compensated", show_default=True)
@click.option("--reduction", default=0.6, show_default=True)
@click.option("--case", "cases", type=int, multiple=True, help="Numbers of cases, from 0.  [default: all]")
@click.option("--once", is_flag=True, help="One timed run of each case, not the median of three.")
@click.option("--out", type=click.Path(path_type=Path))
@click.option("--inner", hidden=True)
def main(
    criterion: str, reduction: float, cases: tuple[int, ...], once: bool, out: Path | None, inner: str | None
) -> None:
    """Measure each case in a process of its own, and print its line."""
    if inner:
        click.echo(json.dumps(measure(**json.loads(inner))))
        return
    lines = []
    for number in cases or range(len(CASES)):
        case = {**CASES[number], "criterion": criterion, "reduction": reduction}
        case["repeat"] = min(case["repeat"], 1) if once else case["repeat"]
        run = subprocess.run(
            [sys.executable, __file__, "--inner", json.dumps(case)], capture_output=True, text=True, check=True
        )
        lines.append(json.loads(run.stdout.splitlines()[-1]))
        click.echo(json.dumps(lines[-1]))
    over = [line for line in lines if is_over(line)]
    if out:
        out.write_text(json.dumps({"cases": lines, **provenance()}, indent=1) + "\n")
    if over:
        raise click.ClickException(f"over the limits of time, of what is no product, or of memory: {over}")


if __name__ == "__main__":
    main()
