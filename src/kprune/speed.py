"""How fast models are, side by side, on a user's own shapes and runtimes; and what stands between FLOPs and time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from kprune.budget import total_flops
from kprune.errors import KpruneError
from kprune.graphs import ONNX, OPENVINO, Run, graph_files, write
from kprune.graphs import start as start_graph
from kprune.memory import forget_peak, peak_megabytes
from kprune.runtimes import RUNTIMES, Runtime, device_name, on_device, runtime_named, torch_threads
from kprune.shapes import emptied, stacked
from kprune.store import Source
from kprune.sublayer import find
from kprune.timing import Times, bound, random_inputs, take_turns

EMPTIED, OUTSIDE = "emptied", "outside"


@dataclass(frozen=True)
class Contender:
    """A model that is timed: a checkpoint's folder, or an exported one, which has its runtime."""

    name: str
    source: Source

    @property
    def graph(self) -> Path | None:
        """The exported graph of a folder that has no weights of its own."""
        folder = self.source.encoder
        found = [folder / target.file for target in (ONNX, OPENVINO) if (folder / target.file).is_file()]
        return found[0] if found and not any(folder.glob("*.safetensors")) else None


@dataclass(frozen=True)
class Loss:
    """Milliseconds by which a model misses its reference's time over the FLOPs ratio, and what they are made of."""

    outside: float
    """Embeddings and head, which pruning does not touch."""
    norms: float
    """Norms and residual sums, of which each layer has as many as before."""
    shapes: float
    """What is left: smaller matrices are less efficient, and calls of operators cost time of their own."""

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
    """Calls that were timed."""
    speedup: float | None = None
    """Over the reference, the median of the rounds' ratios."""
    flops_ratio: float | None = None
    """The reference's FLOPs over this model's, for the encoder."""
    encoder_speedup: float | None = None
    """Over the reference, without the time of embeddings and head."""
    loss: Loss | None = None


@dataclass(frozen=True)
class Footprint:
    """What a model takes in one runtime, in a process of its own."""

    model: str
    runtime: str
    load_seconds: float
    peak_megabytes: float
    """Beyond what the process held before it loaded the model, on the largest of the shapes."""
    disk_megabytes: float


@dataclass(frozen=True)
class Bench:
    """Models side by side."""

    device: str
    threads: int
    reference: str | None
    timings: tuple[Timing, ...]
    footprints: tuple[Footprint, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def bench(
    contenders: Sequence[Contender],
    *,
    shapes: Sequence[tuple[int, int]],
    runtimes: Sequence[str] = ("torch",),
    threads: int | None = None,
    device: str = "cpu",
    seconds: float = 4.0,
    footprints: bool = True,
    progress: Callable[[float, str], None] = lambda fraction, what: None,
) -> Bench:
    """Time models on inputs of (batch, length), taking turns; the second one is the reference of the others' speed-ups.

    With a single model there is no speed-up to tell. `seconds` is the time that each model gets per shape and runtime.
    """
    chosen = [runtime_named(name) for name in runtimes]
    threads = threads or torch.get_num_threads()
    if len({each.name for each in contenders}) < len(contenders):
        raise KpruneError("two models have the same name; give each one of its own.")
    configs = {each.name: each.source.load_config() for each in contenders}
    for config in configs.values():
        for batch, length in shapes:
            random_inputs(config, batch, length, torch.device("cpu"))  # refused before any model is read
    reference = contenders[1].name if len(contenders) > 1 else None
    models = {each.name: _load(each.source, device) for each in contenders if each.graph is None}
    timings: list[Timing] = []
    prints: list[Footprint] = []
    with TemporaryDirectory() as folder, torch_threads(threads):
        for number, runtime in enumerate(chosen):

            def tell(fraction: float, what: str, done: int = number, name: str = runtime.name) -> None:
                progress((done + fraction) / len(chosen), f"{name}, {what}")

            tell(0.0, "starting")
            started = _Started(contenders, configs, models, reference, runtime, threads, Path(folder))
            for place, (batch, length) in enumerate(shapes):
                tell((place + 0.2) / (len(shapes) + 1), f"{batch} × {length}")
                timings += started.time(batch, length, seconds)
            if footprints and device == "cpu":
                tell(len(shapes) / (len(shapes) + 1), "memory")
                prints += started.footprints(max(shapes, key=lambda shape: shape[0] * shape[1]))
    return Bench(
        device=device_name(torch.device(device)),
        threads=threads,
        reference=reference,
        timings=tuple(timings),
        footprints=tuple(prints),
    )


def _load(source: Source, device: str) -> PreTrainedModel:
    """A model as it would be served: on a CPU in float32, since coarser types are slow there."""
    model = source.load().eval()
    return on_device(model.float() if device == "cpu" else model, device)


class _Started:
    """Models, started in one runtime, with copies of the reference that tell where time goes."""

    def __init__(
        self,
        contenders: Sequence[Contender],
        configs: Mapping[str, PreTrainedConfig],
        models: Mapping[str, PreTrainedModel],
        reference: str | None,
        runtime: Runtime,
        threads: int,
        folder: Path,
    ) -> None:
        self.configs, self.models, self.reference = configs, models, reference
        self.runtime, self.threads, self.folder = runtime, threads, folder / runtime.name
        self.contenders = [each for each in contenders if _runs_in(each, runtime)]
        if not self.contenders:
            raise KpruneError(f"no model can run in {runtime.name}: exported folders run where they were exported for.")
        self.folder.mkdir()
        self.graphs = {each.name: each.graph or self._write(models[each.name]) for each in self.contenders}
        self.runs = {name: self._start(graph, models.get(name)) for name, graph in self.graphs.items()}
        self.probes: dict[str, Run] = {}
        whole = models.get(reference or "")
        if whole is not None and not runtime.compiles:  # compiling two more models would take minutes
            for name, model in ((EMPTIED, emptied(whole)), (OUTSIDE, stacked(whole, 0, 0))):
                self.probes[name] = self._start(self._write(model), model)

    def _write(self, model: PreTrainedModel) -> Path | None:
        """The model's graph, where the runtime wants one."""
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
        device = next(iter(self.models.values())).device if self.models else torch.device("cpu")
        calls = {
            ("model", name): bound(run, random_inputs(self.configs[name], batch, length, device))
            for name, run in self.runs.items()
        }
        for name, run in self.probes.items():
            calls["probe", name] = bound(run, random_inputs(self.configs[self.reference or ""], batch, length, device))
        taken = take_turns(calls, seconds=seconds)
        times = {name: each for (kind, name), each in taken.items() if kind == "model"}
        probes = {name: each for (kind, name), each in taken.items() if kind == "probe"}
        return [self._timing(each.name, batch, length, times, probes) for each in self.contenders]

    def _timing(self, name: str, batch: int, length: int, times: dict[str, Times], probes: dict[str, Times]) -> Timing:
        ours, reference = times[name], self.reference
        told: dict[str, Any] = {}
        if reference in times and reference != name:
            theirs = times[reference]
            told["speedup"] = theirs.ratio(ours)
            if name in self.models and reference in self.models:
                told |= _against(self.models[name], self.models[reference], length, ours, theirs, probes)
        return Timing(
            model=name,
            runtime=self.runtime.name,
            batch=batch,
            length=length,
            p50_ms=1e3 * ours.p50,
            p95_ms=1e3 * ours.p95,
            texts_per_second=batch / ours.p50,
            runs=len(ours.all),
            **told,
        )

    def footprints(self, shape: tuple[int, int]) -> list[Footprint]:
        """Load time and peak memory of each model, each in a new process."""
        if self.runtime.compiles:
            return []
        found = []
        for each in self.contenders:
            graph = self.graphs[each.name]
            arguments = (str(each.source.folder), str(graph) if graph else None, shape, self.threads)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                seconds, megabytes = pool.apply(_probe, arguments)
            files = each.source.encoder.glob("*.safetensors") if graph is None else graph_files(graph)
            disk = sum(file.stat().st_size for file in files) / 1e6
            found.append(Footprint(each.name, self.runtime.name, seconds, megabytes, disk))
        return found


def _against(
    model: PreTrainedModel,
    reference: PreTrainedModel,
    length: int,
    ours: Times,
    theirs: Times,
    probes: dict[str, Times],
) -> dict[str, Any]:
    """What a model's time is beside its reference's, by FLOPs, and by the parts that pruning does not touch."""
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


def _probe(folder: str, graph: str | None, shape: tuple[int, int], threads: int | None) -> tuple[float, float]:
    """Seconds to load a model, and megabytes that loading and one run take, in a process that has done nothing else."""
    transformers.utils.logging.disable_progress_bar()
    source = Source(Path(folder))
    config = source.load_config()
    source.class_of(config)  # imported, as the runtimes are, before the clock starts
    inputs = random_inputs(config, *shape, torch.device("cpu"))
    with torch_threads(threads):
        if graph is not None:
            if graph.endswith(".xml"):
                import openvino  # noqa: F401
            else:
                import onnxruntime  # noqa: F401
        forget_peak()
        before = peak_megabytes()
        began = perf_counter()
        if graph is not None:
            run = start_graph(Path(graph), threads=threads)
        else:
            model = _load(source, "cpu")
            run = RUNTIMES["torch"].start(model, random_inputs(model.config, 1, 8, model.device))
        seconds = perf_counter() - began
        run(inputs)
    return seconds, peak_megabytes() - before
