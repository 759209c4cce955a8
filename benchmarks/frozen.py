"""Record what pruning gives, or check that it still gives the same: kept units and weights of many small runs.

    python benchmarks/frozen.py --out benchmarks/results/frozen.json                            # record
    python benchmarks/frozen.py --against benchmarks/results/frozen.json                        # check

Cases: tiny models of six families with every output kind, and all-MiniLM-L6-v2, by every criterion, Kwon and KCM,
at reductions 0.3 and 0.7. A case stores the kept units, a hash of the weights and a few random projections of them:
equal hashes mean equal bits, and projections bound the difference where the last bits changed. `--weights` keeps the
weights themselves, so that a later run can compare every entry. One thread, so that sums have one order.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import click
import torch
from machine import provenance
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from kprune import KpruneError, Pruned, draw, prune
from kprune.checkpoints.source import Source
from kprune.data.calibration import python_documentation
from kprune.jobs.demo import embedded_model

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from tiny import CORE_FAMILIES, KIND_NAMES, batched, texts, tiny_model  # type: ignore[import-not-found]

CRITERIA = ("compensated", "fisher", "paper", "released", "gradient")
RIVALS = ("kwon", "kcm")
REDUCTIONS = (0.3, 0.7)
SKETCHES = 4
TOLERANCE = 1e-6
"""The largest difference of a weight, relative to the largest weight of its tensor, where bits may differ."""


def tiny_batches(kind: str) -> list[dict[str, Tensor]]:
    """Made-up inputs, with the labels that the loss of each kind of model needs."""
    batches: list[dict[str, Tensor]] = batched(texts(48, seed=3))
    generator = torch.Generator().manual_seed(0)
    for batch in batches:
        rows = len(batch["input_ids"])
        if kind == "regression":
            batch["labels"] = torch.rand(rows, generator=generator)
        elif kind == "masked language model":
            chosen = (torch.rand(batch["input_ids"].shape, generator=generator) < 0.3) & batch["attention_mask"].bool()
            batch["labels"] = batch["input_ids"].masked_fill(~chosen, -100)
    return batches


def tiny_cases() -> Iterator[tuple[str, PreTrainedModel, list[dict[str, Tensor]], dict[str, Any]]]:
    for family, kind in product(CORE_FAMILIES, KIND_NAMES):
        model, batches = tiny_model(family, kind), tiny_batches(kind)
        for options in variants():
            yield f"{family}, {kind}", model, batches, {**options, "align": 4}


def real_cases(source: Source, tokens: int) -> Iterator[tuple[str, PreTrainedModel, list[Any], dict[str, Any]]]:
    model = source.load().float()
    rows = [(text,) for text in python_documentation()]
    batches = draw(rows, source.load_tokenizer(), tokens=tokens, max_length=128)
    for options in variants():
        yield source.name, model, batches, options


def variants() -> Iterator[dict[str, Any]]:
    for reduction in REDUCTIONS:
        yield from ({"criterion": criterion, "reduction": reduction} for criterion in CRITERIA)
        yield from ({"method": rival, "reduction": reduction} for rival in RIVALS)


def describe(pruned: Pruned) -> dict[str, Any]:
    """The kept units, the weights' hash and their random projections."""
    digest = hashlib.sha256()
    sketch = torch.zeros(SKETCHES, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for name, tensor in sorted(pruned.model.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
        signs = 2.0 * torch.randint(0, 2, (SKETCHES, tensor.numel()), generator=generator, dtype=torch.float64) - 1.0
        sketch += signs @ tensor.double().flatten()
    kept = [_ranges(step.kept) for step in pruned.steps]
    return {"kept": kept, "hash": digest.hexdigest()[:24], "sketch": [float(f"{value:.9g}") for value in sketch]}


def _ranges(numbers: tuple[int, ...]) -> str:
    """Sorted numbers as text, runs as first-last."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def run(weights: Path | None, tokens: int, models: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Every case's description; a refused case has the name of its error."""
    found: dict[str, dict[str, Any]] = {}
    sources = [embedded_model(), *(Source(Path(model)) for model in models)]
    cases = [*tiny_cases(), *(case for source in sources for case in real_cases(source, tokens))]
    with click.progressbar(cases, file=sys.stderr) as bar:
        for name, model, batches, options in bar:
            way = options.get("method", options.get("criterion"))
            key = f"{name}, {way}, {options['reduction']}"
            try:
                pruned = prune(model, batches, **options)
            except KpruneError as error:
                found[key] = {"error": type(error).__name__}
                continue
            found[key] = describe(pruned)
            if weights is not None:
                state = {name: tensor.contiguous().clone() for name, tensor in pruned.model.state_dict().items()}
                save_file(state, weights / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors")
    return found


def largest_difference(key: str, ours: Path, theirs: Path) -> float:
    """The largest difference of any weight, relative to the largest entry of its tensor."""
    file = f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"
    a, b = load_file(ours / file), load_file(theirs / file)
    return max(float((a[name] - b[name]).abs().max() / a[name].abs().max().clamp(min=1e-30)) for name in a)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="Write the record here.")
@click.option("--against", type=click.Path(path_type=Path, exists=True), help="Compare with this record.")
@click.option("--weights", type=click.Path(path_type=Path), help="Keep all weights in this folder.")
@click.option("--against-weights", type=click.Path(path_type=Path, exists=True), help="Weights of the other record.")
@click.option("--tokens", default=4000, show_default=True, help="Sample of the real model.")
@click.option("--model", "models", multiple=True, help="Another real model's folder.")
def main(
    out: Path | None,
    against: Path | None,
    weights: Path | None,
    against_weights: Path | None,
    tokens: int,
    models: tuple[str, ...],
) -> None:
    """Record every case, or compare with an earlier record."""
    torch.set_num_threads(1)
    if weights is not None:
        weights.mkdir(parents=True, exist_ok=True)
    found = run(weights, tokens, models)
    if out:
        out.write_text(json.dumps({"cases": found, **provenance()}, indent=0) + "\n")
    if not against:
        return
    before = json.loads(against.read_text())["cases"]
    differ = [key for key in before if before[key].get("kept") != found.get(key, {}).get("kept")]
    other_bits = [key for key in before if key not in differ and before[key].get("hash") != found[key].get("hash")]
    click.echo(f"{len(before)} cases: kept units differ in {len(differ)}, bits of weights in {len(other_bits)}.")
    for key in differ:
        click.echo(f"  kept units differ: {key}")
    if weights and against_weights and other_bits:
        gaps = {key: largest_difference(key, weights, against_weights) for key in other_bits}
        worst = max(gaps, key=lambda key: gaps[key])
        click.echo(f"largest relative difference of a weight: {gaps[worst]:.2g} ({worst})")
        differ += [key for key, gap in gaps.items() if gap > TOLERANCE]
    if differ:
        raise click.ClickException(f"{len(differ)} cases differ by more than rounding.")


if __name__ == "__main__":
    main()
