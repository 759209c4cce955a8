"""Which matrices of an ONNX graph cost most when their weights are int8."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from kprune.deploy.onnx import graph_outputs, quantize, start

WEIGHT_INPUTS = {"MatMul": 1, "Gemm": 1, "Gather": 0}
"""Operators whose weights are quantised, and which of their inputs has them."""


@dataclass(frozen=True)
class Matrix:
    """A weight matrix of a graph."""

    name: str
    """The module of the model that has it."""
    nodes: tuple[str, ...]
    """Names of its node, as the quantizer knows it: it splits a Gemm first."""


def weight_matrices(float_file: Path) -> list[Matrix]:
    """The matrices that are quantised, in the graph's order."""
    import onnx

    graph = onnx.load(float_file).graph
    weights = {each.name for each in graph.initializer if len(each.dims) == 2}
    found = []
    for node in graph.node:
        place = WEIGHT_INPUTS.get(node.op_type)
        if place is not None and node.input[place] in weights:
            nodes = (node.name, f"{node.name}_MatMul") if node.op_type == "Gemm" else (node.name,)
            found.append(Matrix(_module_name(node), nodes))
    return found


def _module_name(node: Any) -> str:
    """The dotted path of the module that a node was made of, or the node's own name."""
    scopes = next((each.value for each in node.metadata_props if each.key == "pkg.torch.onnx.name_scopes"), "[]")
    paths = [path for path in ast.literal_eval(scopes) if "." in path]
    return paths[-1].removeprefix("model.") if paths else str(node.name)


def node_names(matrices: Sequence[Matrix]) -> list[str]:
    return [node for matrix in matrices for node in matrix.nodes]


def rank_by_error(
    float_file: Path,
    matrices: Sequence[Matrix],
    batches: Sequence[Mapping[str, Tensor]],
    progress: Callable[[float], None] = lambda fraction: None,
) -> list[Matrix]:
    """The matrices by the error that each alone causes in the graph's answer, largest first.

    The answer is all logits (start and end logits for question answering), or else the last output. The error is
    ‖float32 − int8‖² / ‖float32‖² over the batches, on real tokens.
    """
    names = graph_outputs(float_file)
    places = [place for place, name in enumerate(names) if name.endswith("logits")] or [len(names) - 1]
    expected = _answers(float_file, batches, places)
    size = sum(float(values.square().sum()) for values in expected)
    errors = []
    with TemporaryDirectory(dir=float_file.parent) as folder:
        path = Path(folder) / float_file.name
        for number, matrix in enumerate(matrices):
            quantize(float_file, path, only=matrix.nodes)
            found = _answers(path, batches, places)
            gap = sum(float((a - b).square().sum()) for a, b in zip(expected, found, strict=True))
            errors.append(gap / size if size else gap)
            progress((number + 1) / len(matrices))
    return [matrices[number] for number in sorted(range(len(errors)), key=lambda n: -errors[n])]


def _answers(path: Path, batches: Sequence[Mapping[str, Tensor]], places: Sequence[int]) -> list[Tensor]:
    """Some outputs of a graph on each batch, in float64, without padding."""
    run = start(path, None)
    found = []
    for batch in batches:
        outputs, mask = run(batch), batch.get("attention_mask")
        for values in (outputs[place].to(torch.float64) for place in places):
            found.append(values if mask is None or values.shape[:2] != mask.shape else values[mask.bool()])
    return found
