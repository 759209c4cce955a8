"""Where a model may run: torch eager, torch.compile, ONNX Runtime, OpenVINO; all started alike."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.errors import KpruneError
from kprune.graphs import ONNX, OPENVINO, Run, Target, output_names, write
from kprune.graphs import start as start_graph


@dataclass(frozen=True)
class Runtime:
    """A way to run a model."""

    name: str
    package: str
    """Whose version matters to the time."""
    target: Target | None = None
    """The graph that it runs; None: the model itself."""
    compiles: bool = False

    @property
    def is_installed(self) -> bool:
        packages = (self.package,) if self.target is None else (self.package, *self.target.packages)
        return all(importlib.util.find_spec(package) for package in packages)

    @property
    def version(self) -> str:
        return version(self.package)

    def start(self, model: PreTrainedModel, inputs: Mapping[str, Tensor], threads: int | None = None) -> Run:
        """The model, ready to run; `inputs` are an example of what it reads.

        `threads` bind graphs for good; torch has one number for the whole process (`torch_threads`).
        """
        if self.target is not None:
            with TemporaryDirectory() as folder:
                path = Path(folder) / self.target.file
                write(model, inputs, path)
                return start_graph(path, threads=threads)
        names = output_names(model, inputs)
        forward: Any = model
        if self.compiles:
            # torch compiles one class so many times, and then runs further models of it uncompiled without a word.
            limits: Any = torch._dynamo.config
            limits.recompile_limit = max(limits.recompile_limit, 64)
            forward = torch.compile(model)

        @torch.inference_mode()
        def run(inputs: Mapping[str, Tensor]) -> list[Tensor]:
            outputs = forward(**inputs, return_dict=True)
            return [outputs[name] for name in names]

        return run


RUNTIMES = {
    runtime.name: runtime
    for runtime in (
        Runtime("torch", "torch"),
        Runtime("compile", "torch", compiles=True),
        Runtime("onnxruntime", "onnxruntime", ONNX),
        Runtime("openvino", "openvino", OPENVINO),
    )
}


def runtime_named(name: str) -> Runtime:
    """A runtime by its name, if it is known and installed."""
    if name not in RUNTIMES:
        raise KpruneError(f"there is no runtime {name!r}; use one of {', '.join(RUNTIMES)}.")
    found = RUNTIMES[name]
    if not found.is_installed:
        extra = found.target.extra if found.target else name
        raise KpruneError(f"the runtime {name} is not installed: pip install 'kprune[{extra}]'.")
    return found


def on_device(model: PreTrainedModel, device: str | None) -> PreTrainedModel:
    """The model, moved to a device; without a name, to a GPU where there is one."""
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model.to(name)  # type: ignore[arg-type]
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise KpruneError(f"device {name!r} cannot be used ({reason}); leave --device out, or pass cpu.") from error
    return model


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """torch with so many threads, and afterwards as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_name(device: torch.device) -> str:
    """What the hardware calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
