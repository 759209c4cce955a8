"""ONNX: write a model as one file, and run it in ONNX Runtime."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kprune.deploy.graphs import Run, numpy_inputs, output_names, output_values, silence_exporters
from kprune.errors import KpruneError
from kprune.models.example_inputs import FIXED_INPUTS

MAX_BYTES = 2**31
"""Size limit of a protobuf message, and so of an ONNX file with its weights."""


class Quantizer(Protocol):
    """Writes an int8 graph of a float32 one, and describes for the card what it left in float32."""

    def __call__(self, float_file: Path, path: Path) -> None: ...

    def describe(self) -> str: ...


def write(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    path: Path,
    *,
    int8: bool,
    quantizer: Quantizer | None = None,
) -> None:
    """Write a model as an ONNX file; `inputs` are an example of what it reads.

    `quantizer` writes the int8 graph of a float32 graph; by default all weights are quantised.
    """
    if not int8:
        to_onnx(model, inputs, path)
        return
    with TemporaryDirectory(dir=path.parent) as folder:
        float_file = Path(folder) / path.name
        to_onnx(model, inputs, float_file)
        (quantizer or quantize)(float_file, path)


def start(path: Path, threads: int | None) -> Run:
    """An ONNX file, ready to run on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads:
        options.intra_op_num_threads = threads
    # Without this entry, int8 sums saturate on CPUs without VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run_graph(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        return [torch.from_numpy(output) for output in session.run(None, numpy_inputs(inputs, names))]

    return run_graph


class _TensorModel(nn.Module):
    """A model whose inputs and outputs are tensors in a fixed order."""

    def __init__(self, model: PreTrainedModel, inputs: list[str], pooling: str | None) -> None:
        super().__init__()
        self.model, self.inputs, self.pooling = model, inputs, pooling

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs = dict(zip(self.inputs, tensors, strict=True))
        return tuple(output_values(self.model, inputs, self.pooling).values())


def to_onnx(model: PreTrainedModel, inputs: Mapping[str, Tensor], path: Path, *, pooling: str | None = None) -> None:
    """Write a model as ONNX in float32, for any batch and length; `inputs` are an example of what it reads.

    With a `pooling`, the graph has the sentence embedding as a further output.
    """
    import onnx

    if 4 * model.num_parameters() >= MAX_BYTES:
        raise KpruneError(
            f"a model of {model.num_parameters():,} parameters exceeds the 2 GB that an ONNX file holds in float32; "
            "run it in torch."
        )
    model = copy.deepcopy(model).float().cpu().eval().requires_grad_(False)
    model.set_attn_implementation("eager")  # sdpa adds operators that guard its softmax and cost time
    inputs = {name: value.cpu() for name, value in inputs.items()}
    outputs = output_names(model, inputs, pooling)
    axes = [{0: "batch"} if name in FIXED_INPUTS else {0: "batch", 1: "length"} for name in inputs]
    with silence_exporters():
        program = torch.onnx.export(
            _TensorModel(model, list(inputs), pooling),
            tuple(inputs.values()),
            dynamo=True,
            dynamic_shapes={"tensors": tuple(axes)},
            input_names=list(inputs),
            output_names=outputs,
            verbose=False,
        )
    assert program is not None
    graph = program.model_proto
    add_bias_last(graph.graph)
    onnx.checker.check_model(graph)
    onnx.save(graph, path)


def graph_outputs(path: Path) -> list[str]:
    """Names of a graph's outputs, in order."""
    import onnx

    return [each.name for each in onnx.load(path, load_external_data=False).graph.output]


def quantize(float_file: Path, path: Path, *, only: Sequence[str] | None = None, exclude: Sequence[str] = ()) -> None:
    """Write a float32 ONNX file with int8 weights: of all nodes, or `only` of some; nodes of `exclude` stay in float32.

    ONNX Runtime quantizes activations while it runs, per tensor, so no sample is needed.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(float_file)
    del model.graph.value_info[:]  # the quantizer fails on shapes that the exporter stores here
    with silence_exporters():
        quantize_dynamic(
            model,
            path,
            weight_type=QuantType.QInt8,
            per_channel=True,
            nodes_to_quantize=list(only or ()),
            nodes_to_exclude=list(exclude),
        )


def add_bias_last(graph: Any) -> None:
    """Rewrite x + (f W + b) before a norm as (x + f W) + b, which ONNX Runtime runs faster on a CPU.

    It fuses the first form with the norm into one operator that is several times slower than its parts. That cost
    does not shrink with the number of units. The bias of an emptied sublayer is added without expanding it first.
    """
    makers = {name: node for node in graph.node for name in node.output}
    places = {name: place for place, node in enumerate(graph.node) for name in node.output}
    readers = Counter(name for node in graph.node for name in node.input)
    readers.update(each.name for each in graph.output)
    vectors = {each.name for each in graph.initializer if len(each.dims) == 1}
    for norm in graph.node:
        total = makers.get(norm.input[0]) if norm.op_type == "LayerNormalization" else None
        if total is None or total.op_type != "Add":
            continue
        for side in (0, 1):
            term = makers.get(total.input[side])
            has_one_reader = term is not None and readers[term.output[0]] == 1
            if has_one_reader and _move_bias(total, side, term, vectors, places):
                break
    _remove_unused_expands(graph)


def _move_bias(total: Any, side: int, term: Any, vectors: Iterable[str], places: Mapping[str, int]) -> bool:
    """Move the bias out of one term of a sum; whether it was possible."""
    bias = next((place for place, name in enumerate(term.input) if name in vectors), None)
    if term.op_type == "Expand" and bias == 0:
        total.input[side] = term.input[0]
        return True
    other = total.input[1 - side]
    # The other term must be computed before the inner sum, which reads it now.
    if term.op_type == "Add" and bias is not None and places.get(other, -1) < places[term.output[0]]:
        term.input[bias], total.input[1 - side] = other, term.input[bias]
        return True
    return False


def _remove_unused_expands(graph: Any) -> None:
    used = {name for node in graph.node for name in node.input} | {each.name for each in graph.output}
    for node in [node for node in graph.node if node.op_type == "Expand" and not used & set(node.output)]:
        graph.node.remove(node)
