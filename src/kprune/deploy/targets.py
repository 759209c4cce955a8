"""The formats that a model can be exported to: one row per target."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from kprune.deploy import onnx, openvino
from kprune.deploy.graphs import Run
from kprune.errors import KpruneError


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
    """Python code that defines `run(feed)` for the graph in `{file}`."""
    write: Callable[..., None]
    start: Callable[[Path, int | None], Run]


ONNX = Target(
    "onnx", "ONNX Runtime", onnx.PACKAGES, "onnx", onnx.FILE, usage=onnx.USAGE, write=onnx.write, start=onnx.start
)
OPENVINO = Target(
    "openvino",
    "OpenVINO",
    openvino.PACKAGES,
    "openvino",
    openvino.FILE,
    usage=openvino.USAGE,
    write=openvino.write,
    start=openvino.start,
)
TARGETS = {target.name: target for target in (ONNX, OPENVINO)}


def target_named(name: str) -> Target:
    """A target by its name."""
    if name not in TARGETS:
        raise KpruneError(f"cannot export to {name!r}; use one of {', '.join(TARGETS)}.")
    return TARGETS[name]


def target_of(path: Path) -> Target:
    """The target of a graph's file, by its suffix."""
    return next(target for target in TARGETS.values() if Path(target.file).suffix == path.suffix)


def require_installed(target: Target) -> None:
    """Raise if a package that the target needs cannot be imported."""
    for package in target.packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise KpruneError(f"{target.name} needs {package}: pip install 'kprune[{target.extra}]'.") from error


def write(model: PreTrainedModel, inputs: Mapping[str, Tensor], path: Path, *, int8: bool = False) -> None:
    """Write a model as the graph that the path's suffix names; `inputs` are an example of what it reads."""
    target = target_of(path)
    require_installed(target)
    target.write(model, inputs, path, int8=int8)


def start(path: Path, *, threads: int | None = None) -> Run:
    """An exported graph, ready to run on the CPU."""
    return target_of(path).start(path, threads)
