"""Load time, peak memory and disk size of a model in one runtime, measured in a new process."""

from __future__ import annotations

import importlib
import multiprocessing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
import transformers
from transformers import PreTrainedModel

from kprune.checkpoints.source import Source
from kprune.deploy.graphs import graph_files
from kprune.deploy.runtimes import RUNTIMES, Runtime
from kprune.deploy.targets import start as start_graph
from kprune.deploy.timing import random_inputs
from kprune.models.families import REGISTERED
from kprune.models.family import Family
from kprune.runtime.devices import dtype_name, on_device, torch_threads
from kprune.runtime.memory import peak_megabytes, reset_peak


@dataclass(frozen=True)
class Footprint:
    """Load time and memory of a model in one runtime."""

    model: str
    runtime: str
    load_seconds: float
    peak_megabytes: float
    """Growth of the process from before loading to the peak, on the largest of the shapes."""
    disk_megabytes: float
    dtype: str = "float32"
    """Type of the weights, as in `Timing`."""


def measure_footprint(
    name: str,
    source: Source,
    graph: Path | None,
    runtime: Runtime,
    shape: tuple[int, int],
    threads: int,
    dtype: str | None = None,
) -> Footprint:
    """Load a model, or its exported graph, in a new process and run it once on inputs of (batch, length)."""
    graph_name = None if graph is None else str(graph)
    arguments = (str(source.folder), graph_name, runtime.name, shape, threads, dtype, REGISTERED)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds, megabytes = pool.apply(_load_and_run, arguments)
    files = source.encoder.glob("*.safetensors") if graph is None else graph_files(graph)
    disk = sum(file.stat().st_size for file in files) / 1e6
    return Footprint(name, runtime.name, seconds, megabytes, disk)


def load_for_inference(source: Source, device: str, dtype: str | None = None) -> PreTrainedModel:
    """A model as it is served; without a `dtype`, in float32 on a CPU, since smaller types are slow there."""
    return cast_for_inference(source.load(), device, dtype)


def cast_for_inference(model: PreTrainedModel, device: str, dtype: str | None = None) -> PreTrainedModel:
    """The model on the device, in evaluation mode, in the type that it is served in."""
    chosen = dtype or ("float32" if device == "cpu" else dtype_name(model.dtype))
    return on_device(model.eval().to(getattr(torch, chosen)), device)


def _load_and_run(
    folder: str,
    graph: str | None,
    runtime: str,
    shape: tuple[int, int],
    threads: int,
    dtype: str | None,
    rows: dict[str, Family],
) -> tuple[float, float]:
    """Seconds to load a model, and megabytes for loading and one run; called in a new process.

    `rows` are those that were proposed for model types without one.
    """
    REGISTERED.update(rows)
    transformers.utils.logging.disable_progress_bar()
    source = Source(Path(folder))
    config = source.load_config()
    # Imports are not part of the load time.
    source.class_of(config)
    importlib.import_module(RUNTIMES[runtime].package)
    inputs = random_inputs(config, *shape, torch.device("cpu"))
    with torch_threads(threads):
        reset_peak()
        before = peak_megabytes()
        start = perf_counter()
        if graph is not None:
            run = start_graph(Path(graph), threads=threads)
        else:
            model = load_for_inference(source, "cpu", dtype)
            run = RUNTIMES["torch"].start(model, random_inputs(model.config, 1, 8, model.device))
        seconds = perf_counter() - start
        run(inputs)
    return seconds, peak_megabytes() - before
