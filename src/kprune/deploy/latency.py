"""A budget in milliseconds: the time of heads and neurons on a given batch, length, runtime and threads."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.deploy.runtimes import Runtime, runtime_named
from kprune.deploy.shape_variants import copy_sharing_weights, emptied, reshaped, stacked
from kprune.deploy.timing import Times, bind_inputs, random_inputs, time_interleaved
from kprune.errors import KpruneError
from kprune.models.sublayer import Sublayer, find
from kprune.pruning.budgets import Budget
from kprune.pruning.pruner import Pruner
from kprune.runtime.devices import count_threads, device_name, dtype_name, torch_threads

SHARES = {"attention": (1 / 12, 1 / 6, 1 / 4, 1 / 2, 3 / 4, 1.0), "ffn": (1 / 24, 1 / 12, 1 / 6, 1 / 3, 2 / 3, 1.0)}
"""Shares of a sublayer's units that are timed; other numbers of units are interpolated."""
WHOLE_SHARES = (1 / 8, 1 / 4, 1 / 2)
"""Shares of all units, ascending, for which whole models are timed: sums of parts differ slightly from these."""
MIN_STEP = 1e-3
"""Smallest increase in milliseconds from one timed number of units to the next."""
LAYERS = 4
"""Layers of the timed models: enough to separate a sublayer's time from noise, in little memory."""
MAX_REDUCTION = 0.999

Model = tuple[str, int]
"""Name of a timed model: its role, and a number of units or of the share."""


@dataclass(frozen=True)
class Latency:
    """Milliseconds of a model and its parts, on inputs of one shape."""

    device: str
    runtime: str
    threads: int
    batch: int
    length: int
    dense: float
    """The whole model."""
    fixed: float
    """The model without any unit: embeddings, norms, residual sums, head."""
    tables: dict[str, list[tuple[int, float]]]
    """By kind of sublayer: numbers of units, ascending from 0, each with the milliseconds that they add."""
    whole: list[tuple[float, float]]
    """For no units, half of them and all: the sum of the tables' milliseconds, and the measured sum."""
    dtype: str = "float32"
    """Type of the weights that were timed."""

    @property
    def budget(self) -> Budget:
        """The budget for `prune`; it does not depend on the sample's length."""
        where = f"{self.runtime}, {self.dtype}, {count_threads(self.threads)}"
        name = f"milliseconds of {self.batch} × {self.length} tokens in {where}"
        return Budget(name, lambda sublayer, length: self.price(sublayer))

    def price(self, sublayer: Sublayer) -> Tensor:
        """Milliseconds of 0, 1, 2, … all units of a sublayer; (units + 1,)."""
        points = self.tables[sublayer.kind]
        if points[-1][0] < sublayer.units:
            raise KpruneError(
                f"{sublayer.name} has {sublayer.units} units, and the table ends at {points[-1][0]}: "
                "it was measured on another model; measure this one."
            )
        prices = torch.zeros(sublayer.units + 1, dtype=torch.float64)
        for (low, before), (high, after) in pairwise(points):
            for units in range(low, min(high, sublayer.units) + 1):
                prices[units] = before + (after - before) * (units - low) / (high - low)
        return prices

    def reduction(self, speedup: float) -> float:
        """The share of the units' milliseconds to remove for a speed-up of the whole model."""
        limit = self.dense / self.fixed
        if not 1.0 <= speedup < limit:
            raise KpruneError(
                f"a speed-up of {speedup:g} cannot be reached on inputs of {self.batch} × {self.length} tokens in "
                f"{self.runtime}: without any unit, the model is {limit:.2f} times as fast; ask for at least 1 and "
                "less than that."
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
    """Time a model's heads and neurons, or read earlier times from the folder `cache`.

    About twenty models are timed, `seconds` each. The time of a sublayer is measured on copies with a few layers, in
    which only one kind of sublayer has units.
    """
    chosen = runtime_named(runtime)
    if chosen.compiles:
        raise KpruneError("a budget cannot be measured in compile, which would compile about twenty models; use torch.")
    threads = threads or torch.get_num_threads()
    key = _cache_key(model, chosen, threads, (batch, length))
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    file = None if cache is None else cache / f"latency-{digest}.json"
    if file is not None and (cached := _read(file, key)):
        return cached
    latency = _measure(model, chosen, threads, (batch, length), seconds)
    if file is not None:
        _write(file, key, latency)
    return latency


def reduction_for_speedup(pruner: Pruner, latency: Latency, speedup: float, *, seconds: float = 2.0) -> float:
    """The reduction for which a pruner, whose budget is the latency's, reaches a speed-up.

    Twice, a model of the shape that the pruner would keep at first is timed, and the reduction is corrected.
    """
    reduction = latency.reduction(speedup)
    model = copy_sharing_weights(pruner.shared.teacher).eval()
    for _ in range(2):
        units = iter(pruner.preview(reduction))
        shape = reshaped(model, lambda sublayer, units=units: next(units))  # type: ignore[misc]
        reached = measured_speedup(shape, model, latency, seconds=seconds)
        wanted, actual = (latency.dense / each - latency.fixed for each in (speedup, reached))
        if actual <= 0:
            break
        reduction = min(max(1.0 - (1.0 - reduction) * wanted / actual, 0.0), MAX_REDUCTION)
    return reduction


aim = reduction_for_speedup
"""The public name of earlier versions."""


def measured_speedup(
    model: PreTrainedModel, dense: PreTrainedModel, latency: Latency, *, seconds: float = 4.0
) -> float:
    """Time of the dense model over that of the model, on the latency's shape, runtime and threads."""
    models = {("model", 0): copy_sharing_weights(model).eval(), ("dense", 0): copy_sharing_weights(dense).eval()}
    times = _time_models(
        models,
        runtime_named(latency.runtime),
        latency.threads,
        (latency.batch, latency.length),
        seconds=seconds,
        min_rounds=9,
    )
    return times["dense", 0].ratio(times["model", 0])


def default_cache() -> Path:
    """The user's cache folder for measured times."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kprune"


def _measure(model: PreTrainedModel, runtime: Runtime, threads: int, shape: tuple[int, int], seconds: float) -> Latency:
    batch, length = shape
    model = copy_sharing_weights(model).eval()
    random_inputs(model.config, batch, length, model.device)  # raises for a shape that is too long
    wholes: dict[Model, PreTrainedModel] = {
        ("whole", number): reshaped(model, _share(share)) for number, share in enumerate(WHOLE_SHARES)
    }
    models: dict[Model, PreTrainedModel] = {("dense", 0): model, ("emptied", 0): emptied(model), **wholes}
    times = _time_models(models | _variants(model), runtime, threads, shape, seconds=seconds, min_rounds=7)
    ms = {name: 1e3 * each.p50 for name, each in times.items()}
    dense, fixed = ms["dense", 0], ms["emptied", 0]
    if dense <= fixed:
        raise KpruneError(
            f"inputs of {batch} × {length} tokens take {dense:.3g} ms with all units and {fixed:.3g} ms with none: too "
            "short to tell apart; use a larger shape."
        )
    latency = Latency(
        device=device_name(model.device),
        runtime=runtime.name,
        threads=threads,
        batch=batch,
        length=length,
        dense=dense,
        fixed=fixed,
        tables={kind: _table(kind, ms) for kind in SHARES},
        whole=[],
        dtype=dtype_name(model.dtype),
    )
    return replace(latency, whole=_whole_points(latency, {**wholes, ("dense", 0): model}, ms))


def _time_models(
    models: Mapping[Model, PreTrainedModel],
    runtime: Runtime,
    threads: int,
    shape: tuple[int, int],
    *,
    seconds: float,
    min_rounds: int,
) -> dict[Model, Times]:
    """Interleaved times of models, all on the same inputs."""
    first = next(iter(models.values()))
    inputs = random_inputs(first.config, *shape, first.device)
    example = random_inputs(first.config, 2, 8, first.device)
    with torch_threads(threads):
        runs = {name: runtime.start(each, example, threads) for name, each in models.items()}
        calls = {name: bind_inputs(run, inputs) for name, run in runs.items()}
        return time_interleaved(calls, seconds=seconds, min_rounds=min_rounds)


def _variants(model: PreTrainedModel) -> dict[Model, PreTrainedModel]:
    """Models of a few layers: without units, and with some units of one kind in each layer."""
    variants: dict[Model, PreTrainedModel] = {("bare", 0): emptied(stacked(model, 0, LAYERS))}
    for kind, shares in SHARES.items():
        most, index = max((sublayer.units, sublayer.index) for sublayer in find(model) if sublayer.kind == kind)
        few = stacked(model, index, LAYERS)
        for units in sorted({max(1, round(share * most)) for share in shares} if most else ()):
            variants[kind, units] = reshaped(few, _only(kind, units))
    return variants


def _table(kind: str, ms: Mapping[Model, float]) -> list[tuple[int, float]]:
    """Numbers of units of one kind with the milliseconds that they add to one layer."""
    points = [(0, 0.0)]
    for (name, units), taken in ms.items():
        if name == kind:
            # Noise may hide the time of a few units, but no unit is free.
            points.append((units, max((taken - ms["bare", 0]) / LAYERS, points[-1][1] + MIN_STEP)))
    return points


def _whole_points(
    latency: Latency, wholes: Mapping[Model, PreTrainedModel], ms: Mapping[Model, float]
) -> list[tuple[float, float]]:
    """`Latency.whole`, from whole models with ascending shares of their units, the dense one last."""
    sums = [sum(float(latency.price(sublayer)[-1]) for sublayer in find(each)) for each in wholes.values()]
    measured = [ms[name] - latency.fixed for name in wholes]
    factor = mean(actual / parts for actual, parts in zip(measured[:-1], sums[:-1], strict=True))
    return [(0.0, 0.0), (sums[-2], min(factor * sums[-2], measured[-1])), (sums[-1], measured[-1])]


def _share(share: float) -> Callable[[Sublayer], int]:
    return lambda sublayer: max(1, round(share * sublayer.units))


def _only(kind: str, units: int) -> Callable[[Sublayer], int]:
    return lambda sublayer: units if sublayer.kind == kind else 0


def _cache_key(model: PreTrainedModel, runtime: Runtime, threads: int, shape: tuple[int, int]) -> dict[str, Any]:
    """Everything that a table depends on."""
    return {
        "kprune": version("kprune"),
        "runtime": f"{runtime.name} {runtime.version}",
        "threads": threads,
        "device": device_name(model.device),
        "dtype": str(model.dtype),
        "model": model.config.model_type,
        "vocabulary": model.config.vocab_size,
        "width": model.config.hidden_size,
        "class": type(model).__name__,
        "attention": model.config._attn_implementation,
        "units": [sublayer.units for sublayer in find(model)],
        "shape": list(shape),
    }


def _read(file: Path, key: dict[str, Any]) -> Latency | None:
    """The cached table; None if there is none, or it is damaged or belongs to another key."""
    try:
        content = json.loads(file.read_text("utf-8"))
        if content["key"] != key:
            return None
        fields = content["latency"]
        tables = {kind: [(int(n), float(ms)) for n, ms in points] for kind, points in fields["tables"].items()}
        return Latency(**{**fields, "tables": tables, "whole": [(float(a), float(b)) for a, b in fields["whole"]]})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(file: Path, key: dict[str, Any], latency: Latency) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"key": key, "latency": asdict(latency)}), encoding="utf-8")
        partial.replace(file)
    except OSError:
        return  # without the cache, the next run measures again
