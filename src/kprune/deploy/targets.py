"""The formats that a model can be exported to: one row per target; its code is imported when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kprune.errors import KpruneError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from kprune.deploy.graphs import Run


@dataclass(frozen=True)
class Target:
    """A format to export to."""

    name: str
    title: str
    """Name of the runtime, for people."""
    packages: tuple[str, ...]
    """Packages that writing it needs, besides torch."""
    extra: str
    """kprune's extra that installs them."""
    file: str
    """File name of the graph, as loaders of such folders expect it."""
    usage: str
    """Python code that defines `run(feed)` for the graph in `{file}`, for the exported folder's README."""
    module: str
    """Module of `kprune.deploy`; that of a graph has `write(model, inputs, path, int8=)` and `start(path, threads)`."""
    int8_packages: tuple[str, ...] = ()
    """Further packages that quantised weights need."""

    @property
    def code(self) -> Any:
        """The module, imported."""
        return importlib.import_module(f"kprune.deploy.{self.module}")


ONNX = Target(
    "onnx",
    "ONNX Runtime",
    ("onnx", "onnxscript", "onnxruntime"),
    extra="onnx",
    file="model.onnx",
    usage="""import onnxruntime

session = onnxruntime.InferenceSession("{file}")
run = lambda feed: session.run(None, feed)""",
    module="onnx",
)
OPENVINO = Target(
    "openvino",
    "OpenVINO",
    (*ONNX.packages, "openvino"),
    extra="openvino",
    file="openvino_model.xml",
    usage="""import openvino

compiled = openvino.Core().compile_model("{file}", "CPU")
run = lambda feed: [compiled(feed)[each] for each in compiled.outputs]""",
    module="openvino",
    int8_packages=("nncf",),
)
GGUF = Target(
    "gguf",
    "llama.cpp",
    ("gguf",),
    extra="gguf",
    file="model.gguf",
    usage="""from llama_cpp import Llama

model = Llama("{file}", n_ctx=512, verbose=False)
print(model("Once upon a time", max_tokens=40, temperature=0.0)["choices"][0]["text"])""",
    module="gguf",
)
GRAPHS = {target.name: target for target in (ONNX, OPENVINO)}
"""Targets whose files hold a graph of the model's computation, which kprune runs itself."""
TARGETS = {**GRAPHS, GGUF.name: GGUF}
LAYOUTS = ("plain", "hub")
"""Layouts of an exported folder: one graph where the weights were, or all graphs where servers look for them."""


def target_named(name: str) -> Target:
    """A target by its name."""
    if name not in TARGETS:
        raise KpruneError(f"cannot export to {name!r}; use one of {', '.join(TARGETS)}.")
    return TARGETS[name]


def target_of(path: Path) -> Target:
    """The target of an exported file, by its suffix."""
    return next(target for target in TARGETS.values() if Path(target.file).suffix == path.suffix)


def require_installed(target: Target, *, int8: bool = False) -> None:
    """Raise if a package that the target needs cannot be imported."""
    for package in (*target.packages, *(target.int8_packages if int8 else ())):
        try:
            importlib.import_module(package)
        except ImportError as error:
            what = f"{target.name} with int8 weights" if package in target.int8_packages else target.name
            raise KpruneError(f"{what} needs {package}: pip install 'kprune[{target.extra}]'.") from error


def write(model: PreTrainedModel, inputs: Mapping[str, Tensor], path: Path, *, int8: bool = False) -> None:
    """Write a model as the graph that the path's suffix names; `inputs` are an example of what it reads."""
    target = _graph_target(path)
    require_installed(target, int8=int8)
    target.code.write(model, inputs, path, int8=int8)


def start(path: Path, *, threads: int | None = None) -> Run:
    """An exported graph, ready to run on the CPU."""
    run: Run = _graph_target(path).code.start(path, threads)
    return run


def _graph_target(path: Path) -> Target:
    """The target of a graph's file; raises if the file holds no graph."""
    target = target_of(path)
    if target.name not in GRAPHS:
        raise KpruneError(f"{path.name} holds weights for {target.title}, not a graph; run it there.")
    return target
