"""How fast models are, side by side, on a user's own shapes and runtimes; and what stands between FLOPs and time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, cast

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from kprune.budget import total_flops
from kprune.errors import KpruneError
from kprune.graphs import ONNX, OPENVINO, Run, write
from kprune.graphs import start as start_graph
from kprune.memory import peak_megabytes
from kprune.runtimes import RUNTIMES, Runtime, device_name, runtime_named, torch_threads
from kprune.shapes import emptied, stacked
from kprune.store import Source
from kprune.sublayer import find
from kprune.timing import Times, random_inputs, take_turns

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

    @property
    def bytes(self) -> int:
        files = self.graph_files() or list(self.source.encoder.glob("*.safetensors"))
        return sum(file.stat().st_size for file in files)

    def graph_files(self) -> list[Path]:
        graph = self.graph
        return [] if graph is None else [file for file in (graph, graph.with_suffix(".bin")) if file.is_file()]


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
    reference = contenders[1].name if len(contenders) > 1 else None
    models = {each.name: _load(each.source, device) for each in contenders if each.graph is None}
    _require_length(models, shapes)
    timings: list[Timing] = []
    prints: list[Footprint] = []
    with TemporaryDirectory() as folder, torch_threads(threads):
        for number, runtime in enumerate(chosen):

            def tell(fraction: float, what: str, done: int = number, name: str = runtime.name) -> None:
                progress((done + fraction) / len(chosen), f"{name}, {what}")

            tell(0.0, "starting")
            started = _Started(contenders, models, runtime, threads, Path(folder))
            for place, (batch, length) in enumerate(shapes):
                tell((place + 0.2) / (len(shapes) + 1), f"{batch} × {length}")
                timings += started.time(batch, length, reference, seconds)
            if footprints and device == "cpu":
                tell(len(shapes) / (len(shapes) + 1), "memory")
                prints += started.footprints(max(shapes, key=lambda shape: shape[0] * shape[1]))
    return Bench(
        device=device_name(torch.device(device)),
        threads=threads or torch.get_num_threads(),
        reference=reference,
        timings=tuple(timings),
        footprints=tuple(prints),
    )


def _load(source: Source, device: str) -> PreTrainedModel:
    """A model as it would be served: on a CPU in float32, since coarser types are slow there."""
    model = source.load().eval()
    if device == "cpu":
        model.float()
    return cast(PreTrainedModel, model.to(device))


class _Started:
    """Models, started in one runtime, with copies of the reference that tell where time goes."""

    def __init__(
        self,
        contenders: Sequence[Contender],
        models: Mapping[str, PreTrainedModel],
        runtime: Runtime,
        threads: int | None,
        folder: Path,
    ) -> None:
        self.models, self.runtime, self.threads = models, runtime, threads
        self.contenders = [each for each in contenders if _runs_in(each, runtime)]
        if not self.contenders:
            raise KpruneError(f"no model can run in {runtime.name}: exported folders run where they were exported for.")
        self.config = next(iter(models.values())).config if models else contenders[0].source.load_config()
        self.graphs: dict[str, Path] = {}
        self.runs: dict[str, Run] = {}
        for each in self.contenders:
            if each.graph is not None:
                self.graphs[each.name] = each.graph
                self.runs[each.name] = start_graph(each.graph, threads=threads)
            else:
                self.runs[each.name] = self._start(models[each.name], folder / f"{len(self.runs)}")
        if models and runtime.name != "compile":  # compiling two more models would take minutes
            last = list(models.values())[-1]
            self.runs[EMPTIED] = self._start(emptied(last), folder / EMPTIED, keep=False)
            self.runs[OUTSIDE] = self._start(stacked(last, 0, 0), folder / OUTSIDE, keep=False)

    def _start(self, model: PreTrainedModel, folder: Path, *, keep: bool = True) -> Run:
        example = random_inputs(self.config, 2, 8, model.device)
        if self.runtime.target is None:
            return self.runtime.start(model, example, self.threads)
        folder = folder.with_name(f"{folder.name}-{self.runtime.name}")
        folder.mkdir()
        path = folder / self.runtime.target.file
        write(model, example, path)
        if keep:
            self.graphs[self.contenders[len(self.runs)].name] = path
        return start_graph(path, threads=self.threads)

    def time(self, batch: int, length: int, reference: str | None, seconds: float) -> list[Timing]:
        device = next(iter(self.models.values())).device if self.models else torch.device("cpu")
        inputs = random_inputs(self.config, batch, length, device)
        times = take_turns({name: _call(run, inputs) for name, run in self.runs.items()}, seconds=seconds)
        return [self._timing(each.name, batch, length, reference, times) for each in self.contenders]

    def _timing(self, name: str, batch: int, length: int, reference: str | None, times: dict[str, Times]) -> Timing:
        ours = times[name]
        told: dict[str, Any] = {}
        if reference in times and reference != name:
            theirs = times[reference]
            told["speedup"] = theirs.ratio(ours)
            if name in self.models and reference in self.models:
                told |= self._against(self.models[name], self.models[reference], length, ours, theirs, times)
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

    def _against(
        self,
        model: PreTrainedModel,
        reference: PreTrainedModel,
        length: int,
        ours: Times,
        theirs: Times,
        times: dict[str, Times],
    ) -> dict[str, Any]:
        flops = total_flops(find(model), length)
        if not flops:
            return {}
        ratio = total_flops(find(reference), length) / flops
        same = ("hidden_size", "num_hidden_layers", "vocab_size")
        if OUTSIDE not in times or any(getattr(model.config, n) != getattr(reference.config, n) for n in same):
            return {"flops_ratio": ratio}
        outside, norms = 1e3 * times[OUTSIDE].p50, 1e3 * (times[EMPTIED].p50 - times[OUTSIDE].p50)
        share = 1.0 - 1.0 / ratio
        missed = 1e3 * (ours.p50 - theirs.p50 / ratio)
        return {
            "flops_ratio": ratio,
            "encoder_speedup": (1e3 * theirs.p50 - outside) / (1e3 * ours.p50 - outside),
            "loss": Loss(outside * share, norms * share, missed - (outside + norms) * share),
        }

    def footprints(self, shape: tuple[int, int]) -> list[Footprint]:
        """Load time and peak memory of each model, each in a new process."""
        if self.runtime.name == "compile":
            return []
        found = []
        for each in self.contenders:
            graph = self.graphs.get(each.name)
            arguments = (str(each.source.folder), str(graph) if graph else None, shape, self.threads)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                seconds, megabytes = pool.apply(_probe, arguments)
            disk = each.bytes if graph is None or each.graph else _size(graph)
            found.append(Footprint(each.name, self.runtime.name, seconds, megabytes, disk / 1e6))
        return found


def _size(graph: Path) -> int:
    return sum(file.stat().st_size for file in (graph, graph.with_suffix(".bin")) if file.is_file())


def _runs_in(contender: Contender, runtime: Runtime) -> bool:
    graph = contender.graph
    return graph is None or (runtime.target is not None and runtime.target.file == graph.name)


def _call(run: Run, inputs: Mapping[str, Tensor]) -> Callable[[], object]:
    return lambda: run(inputs)


def _probe(folder: str, graph: str | None, shape: tuple[int, int], threads: int | None) -> tuple[float, float]:
    """Seconds to load a model, and megabytes that loading and one run take, in a process that has done nothing else."""
    transformers.utils.logging.disable_progress_bar()
    source = Source(Path(folder))
    inputs = random_inputs(source.load_config(), *shape, torch.device("cpu"))
    with torch_threads(threads):
        if graph is not None:
            if graph.endswith(".xml"):
                import openvino  # noqa: F401
            else:
                import onnxruntime  # noqa: F401
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


def _require_length(models: Mapping[str, PreTrainedModel], shapes: Sequence[tuple[int, int]]) -> None:
    for name, model in models.items():
        positions = model.config.max_position_embeddings
        for batch, length in shapes:
            if length > positions or batch < 1 or length < 1:
                raise KpruneError(f"inputs of {batch} × {length} tokens cannot be read by {name}; at most {positions}.")
