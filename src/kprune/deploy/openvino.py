"""OpenVINO: write a model as .xml and .bin, and run it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.deploy import onnx
from kprune.deploy.graphs import Run, numpy_inputs, silence_exporters


def write(model: PreTrainedModel, inputs: Mapping[str, Tensor], path: Path, *, int8: bool) -> None:
    """Write a model as an OpenVINO graph, by way of ONNX; `inputs` are an example of what it reads."""
    with TemporaryDirectory(dir=path.parent) as folder:
        onnx_file = Path(folder) / "model.onnx"
        onnx.to_onnx(model, inputs, onnx_file)
        to_openvino(onnx_file, path, int8=int8)


def start(path: Path, threads: int | None) -> Run:
    """An OpenVINO graph, ready to run on the CPU."""
    import openvino

    settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    if threads:
        settings["INFERENCE_NUM_THREADS"] = threads
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    names = [each.get_any_name() for each in compiled.inputs]

    def run(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        outputs = compiled(numpy_inputs(inputs, names))
        return [torch.from_numpy(outputs[output].copy()) for output in compiled.outputs]

    return run


def to_openvino(onnx_file: Path, path: Path, *, int8: bool = False) -> None:
    """Write a float32 ONNX file as .xml and .bin, with float32 or int8 weights; int8 needs no sample."""
    import openvino

    with silence_exporters():
        graph = openvino.convert_model(onnx_file)
        if int8:
            import nncf

            graph = nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.INT8_ASYM)
        openvino.save_model(graph, path, compress_to_fp16=False)
