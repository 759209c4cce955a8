"""Measured speed-ups compared with FLOPs ratios, and with requested speed-ups.

    python benchmarks/speed.py --out benchmarks/results/speed.json

FLOPs ratios: models of the shapes of BERT-base and MiniLM with random weights, which do not change the time. 80 % of
the FLOPs are removed from sublayers of uneven importance, with neurons by 16 and by 1. `kprune.bench` times each with
its dense model. The encoder's share of the ideal is its speed-up, without embeddings and head, divided by the FLOPs
ratio.

Requested speed-ups: all-MiniLM-L6-v2, pruned on Python's documentation with a budget of milliseconds.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import torch
from machine import provenance
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from kprune import Contender, PruneConfig, Pruner, Source, aim, bench, draw, measure_latency
from kprune.data.calibration import python_documentation
from kprune.deploy.latency import measured_speedup
from kprune.deploy.shape_variants import reshaped
from kprune.jobs.demo import embedded_model
from kprune.maths.selection import select_groups
from kprune.models.pruned_shape import describe
from kprune.models.sublayer import find
from kprune.pruning.budgets import FLOPS
from kprune.pruning.run import group_sizes

SHAPES: dict[str, dict[str, Any]] = {
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072},
}
LIMITS = {("minilm", "torch"): 0.88, ("bert-base", "torch"): 0.95}
LIMITS |= {("minilm", "onnxruntime"): 0.85, ("bert-base", "onnxruntime"): 0.90}
INPUTS = [(32, 128), (1, 32)]
REDUCTION = 0.8


def uneven(model: PreTrainedModel, align: int) -> PreTrainedModel:
    """A copy without 80 % of its FLOPs, as a search leaves it if sublayers differ in importance."""
    generator = torch.Generator().manual_seed(0)
    sublayers = find(model)
    prices = [FLOPS.price(sublayer, 128.0) for sublayer in sublayers]
    scores = []
    for sublayer in sublayers:
        importance = 0.9 + 0.2 * torch.rand((), generator=generator, dtype=torch.float64)
        scores.append(importance * torch.rand(sublayer.units, generator=generator, dtype=torch.float64))
    sizes = group_sizes(sublayers, PruneConfig(align=align))
    budget = (1.0 - REDUCTION) * sum(float(price[-1]) for price in prices)
    masks = select_groups(scores, prices, sizes, budget)
    kept = {(s.index, s.kind): int(mask.sum()) for s, mask in zip(sublayers, masks, strict=True)}
    return reshaped(model, lambda sublayer: kept[sublayer.index, sublayer.kind])


def side_by_side(shape: str, runtimes: list[str], seconds: float) -> dict[str, Any]:
    """Times of one shape: aligned, not aligned and dense."""
    torch.manual_seed(0)
    config = BertConfig(vocab_size=30522, num_attention_heads=12, **SHAPES[shape])
    dense = BertForSequenceClassification(config).eval()
    with TemporaryDirectory() as folder:
        models = {"by 16": uneven(dense, 16), "dense": dense, "by 1": uneven(dense, 1)}
        for name, model in models.items():
            record = describe(model, [])
            if record is not None:
                model.config.quantization_config = record
            model.save_pretrained(Path(folder) / name)
        contenders = [Contender(name, Source(Path(folder) / name)) for name in models]
        result = bench(contenders, shapes=INPUTS, runtimes=runtimes, seconds=seconds)
    kept = {name: [sublayer.units for sublayer in find(model)] for name, model in models.items()}
    return {"shape": shape, "kept": kept, **result.as_json()}


def asked_and_measured(runtime: str, speedups: tuple[float, ...]) -> list[dict[str, Any]]:
    """Prune a real model to requested speed-ups, and measure those reached."""
    source = embedded_model()
    model = source.load().float()
    rows = [(text,) for text in python_documentation()]
    batches = draw(rows, source.load_tokenizer(), tokens=5000, max_length=128)
    table = measure_latency(model, runtime=runtime)
    found = []
    pruner = Pruner(model, batches, budget=table.budget)
    for asked in speedups:
        pruned = pruner.prune(aim(pruner, table, asked))
        reached = measured_speedup(pruned.model, model, table)
        kept = [len(step.kept) for step in pruned.steps]
        found.append({"runtime": runtime, "asked": asked, "measured": reached, "kept": kept, "latency": asdict(table)})
        click.echo(f"{runtime}: asked {asked:g}, measured {reached:.2f} ({reached / asked - 1:+.1%})")
    return found


@click.command()
@click.option("--shape", "shapes", multiple=True, type=click.Choice(list(SHAPES)), default=tuple(SHAPES))
@click.option("--runtime", "runtimes", multiple=True, default=("torch", "onnxruntime", "openvino"))
@click.option("--seconds", default=6.0, show_default=True)
@click.option("--side-by-side/--no-side-by-side", "compares", default=True, show_default=True)
@click.option("--speedups/--no-speedups", "asks", default=True, show_default=True)
@click.option("--asked", multiple=True, type=float, default=(2.0, 3.0), show_default=True)
@click.option("--out", type=click.Path(path_type=Path))
def main(
    shapes: tuple[str, ...],
    runtimes: tuple[str, ...],
    seconds: float,
    compares: bool,
    asks: bool,
    asked: tuple[float, ...],
    out: Path | None,
) -> None:
    """Measure, print a line per model, write JSON, and fail if a limit is missed."""
    lines, missed = [], []
    for shape in shapes if compares else ():
        lines.append(side_by_side(shape, list(runtimes), seconds))
        for timing in lines[-1]["timings"]:
            if timing["encoder_speedup"]:
                share = timing["encoder_speedup"] / timing["flops_ratio"]
                click.echo(
                    f"{shape}, {timing['runtime']}, {timing['batch']} × {timing['length']}, {timing['model']}: FLOPs "
                    f"{timing['flops_ratio']:.2f}, speed-up {timing['speedup']:.2f}, encoder's "
                    f"{timing['encoder_speedup']:.2f}, {share:.0%} of the ideal"
                )
                limit = LIMITS.get((shape, timing["runtime"]), 0.0)
                if timing["batch"] == 32 and timing["model"] == "by 16" and share < limit:
                    missed.append(f"{shape} in {timing['runtime']}: {share:.0%} of the ideal, below {limit:.0%}")
    served = [runtime for runtime in runtimes if runtime != "openvino"] if asks else []
    found = [line for runtime in served for line in asked_and_measured(runtime, asked)]
    missed += [
        f"asked {each['asked']:g}, got {each['measured']:.2f} in {each['runtime']}"
        for each in found
        if abs(each["measured"] / each["asked"] - 1) > 0.1
    ]
    if out:
        out.write_text(json.dumps({"side_by_side": lines, "asked": found, **provenance()}, indent=1) + "\n")
    if missed:
        raise click.ClickException("; ".join(missed))


if __name__ == "__main__":
    main()
