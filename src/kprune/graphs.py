"""ONNX and OpenVINO: a model as a graph that runs without torch, transformers or kprune."""

from __future__ import annotations

import copy
import importlib
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from kprune.errors import KpruneError

Run = Callable[[Mapping[str, Tensor]], list[Tensor]]
"""A model started in some runtime: inputs by name to outputs in the order of `output_names`."""


@dataclass(frozen=True)
class Target:
    """A format to export to."""

    name: str
    packages: tuple[str, ...]
    """What must be installed, beside torch, to write it."""
    extra: str
    """kprune's extra that installs them."""
    file: str
    """The graph's name in its folder, as loaders of such folders expect it."""


ONNX = Target("onnx", ("onnx", "onnxscript", "onnxruntime"), "onnx", "model.onnx")
OPENVINO = Target("openvino", (*ONNX.packages, "openvino", "nncf"), "openvino", "openvino_model.xml")
TARGETS = {target.name: target for target in (ONNX, OPENVINO)}


def require(target: Target) -> None:
    """Refuse a target whose packages are not installed."""
    for package in target.packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise KpruneError(f"{target.name} needs {package}: pip install 'kprune[{target.extra}]'.") from error


def output_names(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> list[str]:
    """Names of a model's outputs, in order; of a bare encoder its hidden states alone, not the pooler's."""
    with torch.no_grad():
        outputs = model(**inputs, return_dict=True)
    names = [name for name, value in outputs.items() if isinstance(value, Tensor)]
    return [name for name in names if name != "pooler_output" or len(names) == 1]


class _Graph(nn.Module):
    """A model whose inputs and outputs are tensors in a fixed order."""

    def __init__(self, model: PreTrainedModel, inputs: list[str], outputs: list[str]) -> None:
        super().__init__()
        self.model, self.inputs, self.outputs = model, inputs, outputs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = self.model(**dict(zip(self.inputs, tensors, strict=True)), return_dict=True)
        return tuple(outputs[name] for name in self.outputs)


def to_onnx(model: PreTrainedModel, inputs: Mapping[str, Tensor], path: Path) -> None:
    """Write a model as ONNX in float32, for any batch and length; `inputs` are an example of what it reads."""
    require(ONNX)
    import onnx

    if 4 * model.num_parameters() >= 2**31:
        raise KpruneError(
            f"a model of {model.num_parameters():,} parameters is above the 2 GB that an ONNX file holds in float32; "
            "run it in torch."
        )

    model = copy.deepcopy(model).float().cpu().eval().requires_grad_(False)
    model.set_attn_implementation("eager")  # the other one guards its softmax with operators that cost time
    inputs = {name: value.cpu() for name, value in inputs.items()}
    outputs = output_names(model, inputs)
    axes = {0: "batch", 1: "length"}
    with _quiet():
        program = torch.onnx.export(
            _Graph(model, list(inputs), outputs),
            tuple(inputs.values()),
            dynamo=True,
            dynamic_shapes={"tensors": tuple(dict(axes) for _ in inputs)},
            input_names=list(inputs),
            output_names=outputs,
            verbose=False,
        )
    assert program is not None
    graph = program.model_proto
    add_bias_last(graph.graph)
    onnx.checker.check_model(graph)
    onnx.save(graph, path)


def add_bias_last(graph: Any) -> None:
    """Rewrite x + (f W + b) before a norm as (x + f W) + b: the same sum in an order that ONNX Runtime runs faster.

    On a CPU it fuses the first form with the norm into one operator, which is several times slower than its parts: a
    cost that does not shrink with the units. An emptied sublayer's bias is added as it is, not first spread out.
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
            if term is None or readers[term.output[0]] > 1:
                continue
            bias = next((place for place, name in enumerate(term.input) if name in vectors), None)
            if term.op_type == "Expand" and bias == 0:
                total.input[side] = term.input[0]
                break
            other = total.input[1 - side]
            if term.op_type == "Add" and bias is not None and places.get(other, -1) < places[term.output[0]]:
                term.input[bias], total.input[1 - side] = other, term.input[bias]
                break
    wanted = {name for node in graph.node for name in node.input} | {each.name for each in graph.output}
    for node in [node for node in graph.node if node.op_type == "Expand" and not wanted & set(node.output)]:
        graph.node.remove(node)


def to_openvino(onnx: Path, path: Path) -> None:
    """Write an ONNX file as OpenVINO's .xml and .bin, in float32."""
    require(OPENVINO)
    import openvino

    with _quiet():
        openvino.save_model(openvino.convert_model(onnx), path, compress_to_fp16=False)


def to_int8(onnx: Path, path: Path, target: Target) -> None:
    """Write a float32 ONNX file with its weights in int8, quantised as the runtime of `target` likes it.

    ONNX Runtime quantises activations as they come, by tensor, and OpenVINO chooses by itself: neither needs a sample.
    """
    require(target)
    if target is OPENVINO:
        import nncf
        import openvino

        with _quiet():
            compressed = nncf.compress_weights(openvino.convert_model(onnx), mode=nncf.CompressWeightsMode.INT8_ASYM)
            openvino.save_model(compressed, path, compress_to_fp16=False)
        return
    import onnx as format_of
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = format_of.load(onnx)
    del graph.graph.value_info[:]  # shapes that the exporter noted for itself, and the quantiser trips over
    with _quiet():
        quantize_dynamic(graph, path, weight_type=QuantType.QInt8, per_channel=True)


def write(model: PreTrainedModel, inputs: Mapping[str, Tensor], path: Path, *, int8: bool = False) -> None:
    """Write a model as the graph that the path's ending names; `inputs` are an example of what it reads."""
    target = OPENVINO if path.suffix == ".xml" else ONNX
    if target is ONNX and not int8:
        to_onnx(model, inputs, path)
        return
    with TemporaryDirectory(dir=path.parent) as folder:
        onnx = Path(folder) / ONNX.file
        to_onnx(model, inputs, onnx)
        to_int8(onnx, path, target) if int8 else to_openvino(onnx, path)


def start(path: Path, *, threads: int | None = None) -> Run:
    """An exported graph, ready to run on the CPU, by its file's ending."""
    return _start_openvino(path, threads) if path.suffix == ".xml" else _start_onnx(path, threads)


def _start_onnx(path: Path, threads: int | None) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads:
        options.intra_op_num_threads = threads
    # Without it, int8 sums saturate on CPUs that have no VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        found = session.run(None, _feed(inputs, names))
        return [torch.from_numpy(each) for each in found]

    return run


def _start_openvino(path: Path, threads: int | None) -> Run:
    import openvino

    settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    if threads:
        settings["INFERENCE_NUM_THREADS"] = threads
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    names = [each.get_any_name() for each in compiled.inputs]

    def run(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        found = compiled(_feed(inputs, names))
        return [torch.from_numpy(found[output].copy()) for output in compiled.outputs]

    return run


def _feed(inputs: Mapping[str, Tensor], names: list[str]) -> dict[str, Any]:
    """What a graph reads, of what there is; segments that are not told apart are all the first."""
    first = torch.zeros_like(inputs["input_ids"])
    return {name: inputs.get(name, first).cpu().numpy() for name in names}


def graph_files(path: Path) -> list[Path]:
    """The files of an exported graph: OpenVINO's has its weights beside it."""
    return [file for file in (path, path.with_suffix(".bin")) if file.is_file()]


def served(model: PreTrainedModel, run: Run, outputs: list[str]) -> PreTrainedModel:
    """A model's likeness whose outputs a runtime makes: it has the config and the class, and its weights are idle."""
    likeness = copy.copy(model)

    def forward(**inputs: Any) -> ModelOutput:
        tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
        return ModelOutput(zip(outputs, run(tensors), strict=True))

    likeness.forward = forward
    return likeness


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' chatter, which says nothing that a user could act on."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
