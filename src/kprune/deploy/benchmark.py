"""Times of several models on given shapes and runtimes, and the reasons why they differ from the FLOPs ratio."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from kprune.checkpoints.source import Source
from kprune.deploy.footprint import Footprint, cast_for_inference, measure_footprint
from kprune.deploy.graphs import Run
from kprune.deploy.runtimes import RUNTIMES, Runtime, runtime_named
from kprune.deploy.shape_variants import emptied, stacked
from kprune.deploy.targets import GRAPHS, write
from kprune.deploy.targets import start as start_graph
from kprune.deploy.timing import Times, bind_inputs, random_inputs, time_interleaved
from kprune.errors import KpruneError
from kprune.models.sublayer import find
from kprune.pruning.budgets import total_flops
from kprune.runtime.devices import count_threads, device_name, dtype_name, half_precision_note, torch_threads
from kprune.runtime.notebook import html_table

EMPTIED, OUTSIDE = "emptied", "outside"
"""Copies of the reference that are timed too: without units, and without layers."""


@dataclass(frozen=True)
class Contender:
    """A model to time: a checkpoint folder, or an exported folder, which runs in its own runtime."""

    name: str
    source: Source

    @property
    def graph(self) -> Path | None:
        """The exported graph of a folder without safetensors weights."""
        folder = self.source.encoder
        graphs = [folder / target.file for target in GRAPHS.values() if (folder / target.file).is_file()]
        return graphs[0] if graphs and not any(folder.glob("*.safetensors")) else None


@dataclass(frozen=True)
class Loss:
    """Milliseconds by which a model exceeds the reference's time divided by the FLOPs ratio, in three parts."""

    outside: float
    """Embeddings and head, which pruning does not change."""
    norms: float
    """Norms and residual sums, whose number per layer pruning does not change."""
    shapes: float
    """The remainder: smaller matrices are less efficient, and each call of an operator costs time."""

    @property
    def total(self) -> float:
        return self.outside + self.norms + self.shapes


@dataclass(frozen=True)
class Timing:
    """One model in one runtime on inputs of one shape."""

    model: str
    runtime: str
    batch: int
    length: int
    p50_ms: float
    p95_ms: float
    texts_per_second: float
    runs: int
    """Number of timed calls."""
    speedup: float | None = None
    """Relative to the reference: the median of the rounds' ratios."""
    flops_ratio: float | None = None
    """Encoder FLOPs of the reference over those of this model."""
    encoder_speedup: float | None = None
    """Relative to the reference, without the time of embeddings and head."""
    loss: Loss | None = None
    dtype: str = "float32"
    """Type of the weights; `exported` for a graph that was given."""


@dataclass(frozen=True)
class Bench:
    """Times and footprints of several models."""

    device: str
    threads: int
    reference: str | None
    timings: tuple[Timing, ...]
    footprints: tuple[Footprint, ...]
    notes: tuple[str, ...] = ()
    """Sentences on types of weights."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def _repr_html_(self) -> str:
        """A table for notebooks: times per model, runtime and shape."""
        rows = [
            (
                timing.model,
                timing.runtime,
                f"{timing.batch} × {timing.length}",
                f"{timing.p50_ms:.1f}",
                f"{timing.p95_ms:.1f}",
                f"{timing.texts_per_second:.0f}",
                "" if timing.speedup is None else f"{timing.speedup:.2f}",
            )
            for timing in self.timings
        ]
        headings = ("model", "runtime", "shape", "p50 ms", "p95 ms", "texts/s", "speed-up")
        caption = f"{self.device}, {count_threads(self.threads)}"
        return html_table(caption, headings, rows, self.notes, text_columns=3)


def bench(
    contenders: Sequence[Contender],
    *,
    shapes: Sequence[tuple[int, int]],
    runtimes: Sequence[str] = ("torch",),
    threads: int | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    seconds: float = 4.0,
    footprints: bool = True,
    progress: Callable[[float, str], None] = lambda fraction, what: None,
) -> Bench:
    """Time models on inputs of (batch, length), interleaved; speed-ups are relative to the second model.

    A single model has no speed-up. `seconds` is the time for each model per shape and runtime. `dtype` is the type of
    the weights in torch; by default float32 on a CPU, and the model's own on a GPU.
    """
    chosen = [runtime_named(name) for name in runtimes]
    _require_runnable(chosen, dtype)
    threads = threads or torch.get_num_threads()
    entries = _load_entries(contenders, shapes, device, dtype)
    timings: list[Timing] = []
    measured: list[Footprint] = []
    steps = len(chosen) * (len(shapes) + 1)
    with TemporaryDirectory() as folder, torch_threads(threads):
        for number, runtime in enumerate(chosen):
            done = number * (len(shapes) + 1)
            progress(done / steps, f"{runtime.name}, starting")
            started = _StartedModels(entries, runtime, threads, Path(folder) / runtime.name)
            for place, (batch, length) in enumerate(shapes):
                progress((done + place + 0.2) / steps, f"{runtime.name}, {batch} × {length}")
                timings += started.time(batch, length, seconds)
            if footprints and device == "cpu":
                progress((done + len(shapes)) / steps, f"{runtime.name}, memory")
                measured += started.footprints(max(shapes, key=lambda shape: shape[0] * shape[1]))
    return Bench(
        device=device_name(torch.device(device)),
        threads=threads,
        reference=entries.reference,
        timings=tuple(timings),
        footprints=tuple(measured),
        notes=entries.notes,
    )


def timed_seconds(contenders: int, shapes: int, runtimes: Sequence[str], seconds: float) -> float:
    """Seconds in which `bench` times so many models; to start them, and to measure their memory, takes more.

    With a second model, two copies of it are timed too, but not where the runtime compiles.
    """
    calls = [contenders + (2 if contenders > 1 and not RUNTIMES[name].compiles else 0) for name in runtimes]
    return seconds * shapes * sum(calls)


def _require_runnable(runtimes: Sequence[Runtime], dtype: str | None) -> None:
    for runtime in runtimes:
        if runtime.target is not None and dtype not in (None, "float32"):
            raise KpruneError(f"{runtime.name} runs float32 graphs, not {dtype}; leave it out, or leave --dtype out.")


@dataclass(frozen=True)
class _Entries:
    """The contenders with their configs and, except for exported graphs, their torch models by name."""

    contenders: Sequence[Contender]
    configs: Mapping[str, PreTrainedConfig]
    models: Mapping[str, PreTrainedModel]
    reference: str | None
    dtype: str | None
    """The type that was asked for."""
    notes: tuple[str, ...]


def _load_entries(
    contenders: Sequence[Contender], shapes: Sequence[tuple[int, int]], device: str, dtype: str | None
) -> _Entries:
    names = [each.name for each in contenders]
    for name in names:
        if names.count(name) > 1:
            raise KpruneError(f"two models have the name {name!r}; give each model its own name.")
    configs = {each.name: each.source.load_config() for each in contenders}
    for config in configs.values():
        for batch, length in shapes:
            random_inputs(config, batch, length, torch.device("cpu"))  # raises before any weight is read
    models, notes = {}, []
    for each in contenders:
        if each.graph is None:
            model = each.source.load()
            if device == "cpu" and (note := half_precision_note(model, f"{each.name}'s folder")):
                notes.append(note)
            models[each.name] = cast_for_inference(model, device, dtype)
    return _Entries(contenders, configs, models, names[1] if len(names) > 1 else None, dtype, tuple(notes))


class _StartedModels:
    """Models that are ready to run in one runtime, and the copies of the reference that explain its time."""

    def __init__(self, entries: _Entries, runtime: Runtime, threads: int, folder: Path) -> None:
        self.entries, self.runtime, self.threads, self.folder = entries, runtime, threads, folder
        self.contenders = [each for each in entries.contenders if _runs_in(each, runtime)]
        if not self.contenders:
            raise KpruneError(
                f"no model can run in {runtime.name}: an exported folder runs only in the runtime of its target; "
                "choose another runtime or add a checkpoint."
            )
        models = entries.models
        self.folder.mkdir()
        self.graphs = {each.name: each.graph or self._write(models[each.name]) for each in self.contenders}
        self.runs = {name: self._start(graph, models.get(name)) for name, graph in self.graphs.items()}
        self.probes: dict[str, Run] = {}
        whole = models.get(entries.reference or "")
        if whole is not None and not runtime.compiles:  # compiling two more models would take minutes
            for name, model in ((EMPTIED, emptied(whole)), (OUTSIDE, stacked(whole, 0, 0))):
                self.probes[name] = self._start(self._write(model), model)

    def _write(self, model: PreTrainedModel) -> Path | None:
        """Write the model's graph if the runtime needs one."""
        if self.runtime.target is None:
            return None
        path = self.folder / f"{len(list(self.folder.iterdir()))}" / self.runtime.target.file
        path.parent.mkdir()
        write(model, random_inputs(model.config, 2, 8, model.device), path)
        return path

    def _start(self, graph: Path | None, model: PreTrainedModel | None) -> Run:
        if graph is not None:
            return start_graph(graph, threads=self.threads)
        assert model is not None
        return self.runtime.start(model, random_inputs(model.config, 2, 8, model.device), self.threads)

    def time(self, batch: int, length: int, seconds: float) -> list[Timing]:
        """Times of all models on inputs of one shape, in the contenders' order."""
        configs, models = self.entries.configs, self.entries.models
        device = next(iter(models.values())).device if models else torch.device("cpu")
        calls = {
            ("model", name): bind_inputs(run, random_inputs(configs[name], batch, length, device))
            for name, run in self.runs.items()
        }
        for name, run in self.probes.items():
            inputs = random_inputs(configs[self.entries.reference or ""], batch, length, device)
            calls["probe", name] = bind_inputs(run, inputs)
        taken = time_interleaved(calls, seconds=seconds)
        times = {name: each for (kind, name), each in taken.items() if kind == "model"}
        probes = {name: each for (kind, name), each in taken.items() if kind == "probe"}
        return [self._timing(each.name, batch, length, times, probes) for each in self.contenders]

    def _timing(self, name: str, batch: int, length: int, times: dict[str, Times], probes: dict[str, Times]) -> Timing:
        ours, models, reference = times[name], self.entries.models, self.entries.reference
        comparison: dict[str, Any] = {}
        if reference in times and reference != name:
            theirs = times[reference]
            comparison["speedup"] = theirs.ratio(ours)
            if name in models and reference in models:
                comparison |= _explain(models[name], models[reference], length, ours, theirs, probes)
        return Timing(
            model=name,
            runtime=self.runtime.name,
            dtype=self._dtype(name),
            batch=batch,
            length=length,
            p50_ms=1e3 * ours.p50,
            p95_ms=1e3 * ours.p95,
            texts_per_second=batch / ours.p50,
            runs=len(ours.all),
            **comparison,
        )

    def _dtype(self, name: str) -> str:
        models = self.entries.models
        return dtype_name(models[name].dtype) if name in models else "exported"

    def footprints(self, shape: tuple[int, int]) -> list[Footprint]:
        """Load time and memory of each model; none for a runtime that compiles."""
        if self.runtime.compiles:
            return []
        asked = self.entries.dtype
        return [
            replace(
                measure_footprint(name, each.source, self.graphs[name], self.runtime, shape, self.threads, asked),
                dtype=self._dtype(name),
            )
            for name, each in ((each.name, each) for each in self.contenders)
        ]


def _explain(
    model: PreTrainedModel,
    reference: PreTrainedModel,
    length: int,
    ours: Times,
    theirs: Times,
    probes: dict[str, Times],
) -> dict[str, Any]:
    """The FLOPs ratio and, for models of the same width and depth, the parts of the loss, as fields of `Timing`."""
    flops = total_flops(find(model), length)
    if not flops:
        return {}
    ratio = total_flops(find(reference), length) / flops
    same = ("hidden_size", "num_hidden_layers", "vocab_size")
    if OUTSIDE not in probes or any(getattr(model.config, n) != getattr(reference.config, n) for n in same):
        return {"flops_ratio": ratio}
    outside, norms = 1e3 * probes[OUTSIDE].p50, 1e3 * (probes[EMPTIED].p50 - probes[OUTSIDE].p50)
    share = 1.0 - 1.0 / ratio
    missed = 1e3 * (ours.p50 - theirs.p50 / ratio)
    return {
        "flops_ratio": ratio,
        "encoder_speedup": theirs.ratio(ours, without=probes[OUTSIDE].p50),
        "loss": Loss(outside * share, norms * share, missed - (outside + norms) * share),
    }


def _runs_in(contender: Contender, runtime: Runtime) -> bool:
    graph = contender.graph
    return graph is None or (runtime.target is not None and runtime.target.file == graph.name)
