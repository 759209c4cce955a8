"""A budget of milliseconds: what heads and neurons cost on a user's own batch, length, runtime and threads."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.budget import Budget
from kprune.errors import KpruneError
from kprune.prune import Pruner
from kprune.runtimes import device_name, runtime_named, torch_threads
from kprune.shapes import emptied, reshaped, sharing, stacked
from kprune.sublayer import Sublayer, find
from kprune.timing import bound, random_inputs, take_turns

SHARES = {"attention": (1 / 12, 1 / 6, 1 / 4, 1 / 2, 3 / 4, 1.0), "ffn": (1 / 24, 1 / 12, 1 / 6, 1 / 3, 2 / 3, 1.0)}
"""Shares of a sublayer's units that are timed; what lies between is interpolated."""
WHOLE_SHARES = (1 / 8, 1 / 4, 1 / 2)
"""Shares of all units, ascending, with which whole models are timed: parts do not quite add up to them."""
LEAST = 1e-3
"""Milliseconds that more units cost at least."""
LAYERS = 4
"""Layers of the models that are timed: enough to tell a sublayer's time from noise, and no more memory."""


@dataclass(frozen=True)
class Latency:
    """Milliseconds of a model and its parts, on one kind of input."""

    device: str
    runtime: str
    threads: int
    batch: int
    length: int
    dense: float
    """The whole model."""
    fixed: float
    """The model without any unit: embeddings, norms, residual sums, the head."""
    tables: dict[str, list[tuple[int, float]]]
    """By kind of sublayer: what so many units of one sublayer add, for some numbers of units, ascending from 0."""
    whole: list[tuple[float, float]]
    """Of no units, half of them and all: what their sublayers add by the tables, and what they add in a whole model."""

    @property
    def budget(self) -> Budget:
        """What `prune` spends; the length of the sample does not matter to it."""
        name = f"milliseconds of {self.batch} × {self.length} tokens in {self.runtime}, {self.threads} threads"
        return Budget(name, lambda sublayer, length: self.price(sublayer))

    def price(self, sublayer: Sublayer) -> Tensor:
        """Milliseconds of 0, 1, 2, … all units of a sublayer; (units + 1,)."""
        points = self.tables[sublayer.kind]
        if points[-1][0] < sublayer.units:
            raise KpruneError(
                f"{sublayer.name} has {sublayer.units} units, and times are known up to {points[-1][0]}: "
                "the table is of another model; measure this one's."
            )
        found = torch.zeros(sublayer.units + 1, dtype=torch.float64)
        for (low, before), (high, after) in pairwise(points):
            for units in range(low, min(high, sublayer.units) + 1):
                found[units] = before + (after - before) * (units - low) / (high - low)
        return found

    def reduction(self, speedup: float) -> float:
        """The share of the units' milliseconds to remove so that the whole model is so many times as fast."""
        most = self.dense / self.fixed
        if not 1.0 <= speedup < most:
            raise KpruneError(
                f"a speed-up of {speedup:g} cannot be reached on inputs of {self.batch} × {self.length} tokens in "
                f"{self.runtime}: without any unit left, the model is {most:.2f} times as fast; ask for 1 or more, "
                "and less than that."
            )
        wanted = self.dense / speedup - self.fixed
        for (low, before), (high, after) in pairwise(self.whole):
            if before <= wanted <= after:
                parts = low + (high - low) * (wanted - before) / max(after - before, 1e-9)
                return 1.0 - parts / self.whole[-1][0]
        return 0.0


def measure_latency(
    model: PreTrainedModel,
    *,
    batch: int = 32,
    length: int = 128,
    runtime: str = "torch",
    threads: int | None = None,
    cache: Path | None = None,
    seconds: float = 2.0,
) -> Latency:
    """Time a model's heads and neurons, or take the times from the folder `cache` if they were taken there before.

    `seconds` is the time that each of some twenty models gets. What a sublayer costs is measured on copies of a few
    layers in which only one kind of sublayer has units, some share of them.
    """
    chosen = runtime_named(runtime)
    if chosen.compiles:
        raise KpruneError("a budget cannot be measured in compile, which would compile some twenty models; use torch.")
    threads = threads or torch.get_num_threads()
    key = {
        "kprune": version("kprune"),
        "runtime": f"{chosen.name} {chosen.version}",
        "threads": threads,
        "device": device_name(model.device),
        "dtype": str(model.dtype),
        "model": model.config.model_type,
        "vocabulary": model.config.vocab_size,
        "width": model.config.hidden_size,
        "class": type(model).__name__,
        "attention": model.config._attn_implementation,
        "units": [sublayer.units for sublayer in find(model)],
        "shape": [batch, length],
    }
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    file = None if cache is None else cache / f"latency-{digest}.json"
    if file is not None and (found := _read(file, key)):
        return found
    model = sharing(model).eval()
    example = random_inputs(model.config, 2, 8, model.device)
    given = random_inputs(model.config, batch, length, model.device)
    wholes = {("whole", number): reshaped(model, _share(share)) for number, share in enumerate(WHOLE_SHARES)}
    models = {("dense", 0): model, ("emptied", 0): emptied(model), **wholes, **_variants(model)}
    with torch_threads(threads):
        runs = {name: chosen.start(each, example, threads) for name, each in models.items()}
        times = take_turns({name: bound(run, given) for name, run in runs.items()}, seconds=seconds, least=7)
    bare = 1e3 * times["bare", 0].p50
    tables = {}
    for kind in SHARES:
        points = [(0, 0.0)]
        for (name, units), taken in times.items():
            if name == kind:
                # Noise may hide what a few units cost; nothing is free.
                points.append((units, max((1e3 * taken.p50 - bare) / LAYERS, points[-1][1] + LEAST)))
        tables[kind] = points
    dense, fixed = (1e3 * times[name, 0].p50 for name in ("dense", "emptied"))
    if dense <= fixed:
        raise KpruneError(
            f"inputs of {batch} × {length} tokens take {dense:.3g} ms with all units and {fixed:.3g} ms with none: too "
            "short to tell apart; use a larger shape."
        )
    latency = Latency(
        device=key["device"],
        runtime=runtime,
        threads=threads,
        batch=batch,
        length=length,
        dense=dense,
        fixed=fixed,
        tables=tables,
        whole=[],
    )
    sums = [sum(float(latency.price(sublayer)[-1]) for sublayer in find(each)) for each in (*wholes.values(), model)]
    added = [1e3 * times[name].p50 - fixed for name in (*wholes, ("dense", 0))]
    factor = mean(there / parts for there, parts in zip(added[:-1], sums[:-1], strict=True))
    whole = [(0.0, 0.0), (sums[-2], min(factor * sums[-2], added[-1])), (sums[-1], added[-1])]
    latency = replace(latency, whole=whole)
    if file is not None:
        _write(file, key, latency)
    return latency


def aim(pruner: Pruner, latency: Latency, speedup: float, *, seconds: float = 2.0) -> float:
    """The reduction with which a pruner, whose budget is the latency's, makes its model so many times as fast.

    Models of the shape that the first measurement would leave are timed, twice, and the reduction is put right by
    what they miss.
    """
    reduction = latency.reduction(speedup)
    model = sharing(pruner.teacher).eval()
    for _ in range(2):
        left = iter(pruner.preview(reduction))
        shape = reshaped(model, lambda sublayer, left=left: next(left))  # type: ignore[misc]
        reached = measured_speedup(shape, model, latency, seconds=seconds)
        wanted, there = (latency.dense / each - latency.fixed for each in (speedup, reached))
        if there <= 0:
            break
        reduction = min(max(1.0 - (1.0 - reduction) * wanted / there, 0.0), 0.999)
    return reduction


def measured_speedup(
    model: PreTrainedModel, dense: PreTrainedModel, latency: Latency, *, seconds: float = 4.0
) -> float:
    """How many times as fast a model is as the dense one, on the kind of input that a table is about."""
    chosen = runtime_named(latency.runtime)
    given = random_inputs(model.config, latency.batch, latency.length, model.device)
    example = random_inputs(model.config, 2, 8, model.device)
    with torch_threads(latency.threads):
        runs = [chosen.start(sharing(each).eval(), example, latency.threads) for each in (model, dense)]
        times = take_turns({number: bound(run, given) for number, run in enumerate(runs)}, seconds=seconds, least=9)
    return times[1].ratio(times[0])


def _variants(model: PreTrainedModel) -> dict[tuple[str, int], PreTrainedModel]:
    """Models of a few layers without units, and with so many of one kind in each layer."""
    variants: dict[tuple[str, int], PreTrainedModel] = {("bare", 0): emptied(stacked(model, 0, LAYERS))}
    for kind, shares in SHARES.items():
        most, index = max((sublayer.units, sublayer.index) for sublayer in find(model) if sublayer.kind == kind)
        few = stacked(model, index, LAYERS)
        for units in sorted({max(1, round(share * most)) for share in shares} if most else ()):
            variants[kind, units] = reshaped(few, _only(kind, units))
    return variants


def _share(share: float) -> Callable[[Sublayer], int]:
    return lambda sublayer: max(1, round(share * sublayer.units))


def _only(kind: str, units: int) -> Callable[[Sublayer], int]:
    return lambda sublayer: units if sublayer.kind == kind else 0


def default_cache() -> Path:
    """Where times are kept from run to run."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kprune"


def _read(file: Path, key: dict[str, Any]) -> Latency | None:
    try:
        content = json.loads(file.read_text("utf-8"))
        if content["key"] != key:
            return None
        found = content["latency"]
        tables = {kind: [(int(n), float(ms)) for n, ms in points] for kind, points in found["tables"].items()}
        return Latency(**{**found, "tables": tables, "whole": [(float(a), float(b)) for a, b in found["whole"]]})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # it is measured anew


def _write(file: Path, key: dict[str, Any], latency: Latency) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"key": key, "latency": asdict(latency)}), encoding="utf-8")
        partial.replace(file)
    except OSError:
        return  # a folder that cannot be written to costs time, not the run
