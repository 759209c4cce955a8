"""The runtimes that a model can run in: torch eager, torch.compile, ONNX Runtime, OpenVINO.

The command line reads the table without importing torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kprune.deploy.targets import ONNX, OPENVINO, Target, write
from kprune.deploy.targets import start as start_graph
from kprune.errors import KpruneError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from kprune.deploy.graphs import Run

MIN_RECOMPILE_LIMIT = 64
"""torch compiles one class up to a limit, and then runs further models of it uncompiled, without a message."""


@dataclass(frozen=True)
class Runtime:
    """A way to run a model."""

    name: str
    package: str
    """Package whose version affects the time."""
    target: Target | None = None
    """The graph that it runs; None: the torch model itself."""
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

        `threads` applies to graphs only; torch has one number for the process (`torch_threads`).
        """
        if self.target is None:
            return self._start_torch(model, inputs)
        with TemporaryDirectory() as folder:
            path = Path(folder) / self.target.file
            write(model, inputs, path)
            return start_graph(path, threads=threads)

    def _start_torch(self, model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Run:
        import torch

        from kprune.deploy.graphs import output_names
        from kprune.models.outputs import runs_encoder_only

        names = output_names(model, inputs)
        forward: Any = model.get_encoder() if runs_encoder_only(model) else model
        if self.compiles:
            limits: Any = torch._dynamo.config
            limits.recompile_limit = max(limits.recompile_limit, MIN_RECOMPILE_LIMIT)
            forward = torch.compile(forward)

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
    runtime = RUNTIMES[name]
    if not runtime.is_installed:
        extra = runtime.target.extra if runtime.target else name
        raise KpruneError(f"the runtime {name} is not installed: pip install 'kprune[{extra}]'.")
    return runtime
