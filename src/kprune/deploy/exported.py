"""What an export wrote: the graphs of a folder, and their differences from torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from kprune.checkpoints.source import Source
from kprune.deploy.graphs import served_model
from kprune.deploy.targets import start


@dataclass(frozen=True)
class Graph:
    """One graph of an exported folder."""

    file: Path
    target: str
    int8: bool
    difference: float | None
    """Largest difference from torch in any output, on real tokens; None if its runtime is not installed."""
    bytes: int


@dataclass(frozen=True)
class Exported:
    """An exported folder: its main graph, and all graphs."""

    folder: Path
    file: Path
    """The main graph."""
    target: str
    int8: bool
    texts: int
    """Number of texts on which the graphs were checked."""
    difference: float | None
    """Largest difference from torch in any output, on real tokens; None if the runtime is not installed."""
    bytes: tuple[int, int]
    """Size on disk: the safetensors weights, and the main graph."""
    outputs: list[str]
    graphs: tuple[Graph, ...]
    """All graphs; the first is the main one."""

    @classmethod
    def of(cls, folder: Path, graphs: tuple[Graph, ...], source: Source, texts: int, outputs: list[str]) -> Exported:
        """The export of `source` whose main graph is the first one."""
        main = graphs[0]
        weights = sum(each.stat().st_size for each in source.encoder.glob("*.safetensors"))
        return cls(
            folder,
            main.file,
            main.target,
            main.int8,
            texts,
            main.difference,
            (weights, main.bytes),
            outputs,
            graphs,
        )

    @property
    def quantized(self) -> Graph | None:
        """The graph with int8 weights, if there is one."""
        return next((graph for graph in self.graphs if graph.int8), None)

    def model(self, model: PreTrainedModel, graph: Graph | None = None) -> PreTrainedModel:
        """A copy of `model` that runs a graph, by default the main one, and can be evaluated like any model."""
        return served_model(model, start((graph or self.graphs[0]).file), self.outputs)
