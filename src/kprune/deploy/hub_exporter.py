"""Write a folder in the hub layout: graphs of all targets, checked against torch, and the files that servers read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from kprune.checkpoints.atomic import staged_folder
from kprune.checkpoints.source import Source
from kprune.deploy import onnx, openvino
from kprune.deploy.exported import Exported, Graph
from kprune.deploy.graph_check import checked_texts, difference, encode, require_close
from kprune.deploy.graphs import graph_bytes, output_names
from kprune.deploy.hub_card import hub_card
from kprune.deploy.hub_folder import describe_served, write_files
from kprune.deploy.hub_tokenizer import require_same_tokens
from kprune.deploy.targets import ONNX, OPENVINO, require_installed, start

ONNX_FILE, INT8_FILE, OPENVINO_FILE = "onnx/model.onnx", "onnx/model_quantized.onnx", "openvino/openvino_model.xml"
"""Names that programs look for; most of them accept no others."""


def export_hub(
    source: Source,
    model: PreTrainedModel,
    folder: Path,
    *,
    texts: Sequence[str] | None,
    overwrite: bool,
    quantizer: onnx.Quantizer | None = None,
) -> Exported:
    """Write a float32 model in the hub layout; its weights stay in the folder, in their stored type."""
    require_installed(ONNX)
    require_installed(OPENVINO)
    served = describe_served(source, model)
    model = served.model
    checked = checked_texts(texts)
    batches = encode(served.tokenizer, checked, served.max_length)
    inputs, outputs = list(batches[0]), output_names(model, batches[0], served.pooling)
    with staged_folder(folder, overwrite=overwrite) as staging:
        write_files(served, staging, inputs)
        require_same_tokens(served.tokenizer, staging, checked, max_length=served.max_length)
        for name in ("onnx", "openvino"):
            (staging / name).mkdir()
        onnx.to_onnx(model, batches[0], staging / ONNX_FILE, pooling=served.pooling)
        (quantizer or onnx.quantize)(staging / ONNX_FILE, staging / INT8_FILE)
        openvino.to_openvino(staging / ONNX_FILE, staging / OPENVINO_FILE)
        graphs = []
        for name, target in ((ONNX_FILE, ONNX), (INT8_FILE, ONNX), (OPENVINO_FILE, OPENVINO)):
            run, is_int8 = start(staging / name), name == INT8_FILE
            largest, size = difference(model, run, outputs, batches, pooling=served.pooling)
            if not is_int8:
                require_close(target.name, largest, size)
            graphs.append(Graph(folder / name, target.name, is_int8, largest, graph_bytes(staging / name)))
        note = quantizer.describe() if quantizer else ""
        card = hub_card(served, folder.name, graphs, len(checked), inputs, outputs, note)
        (staging / "README.md").write_text(card, encoding="utf-8")
    return Exported.of(folder, tuple(graphs), source, len(checked), outputs)
