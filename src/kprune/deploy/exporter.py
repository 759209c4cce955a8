"""Export a checkpoint folder for ONNX Runtime, OpenVINO, llama.cpp or all servers, checked against torch on text."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from kprune.checkpoints.atomic import staged_folder
from kprune.checkpoints.self_contained import drop_modeling
from kprune.checkpoints.source import Source
from kprune.deploy import onnx
from kprune.deploy.exported import Exported, Graph
from kprune.deploy.gguf_exporter import export_gguf
from kprune.deploy.graph_card import graph_card
from kprune.deploy.graph_check import check_inputs, count_examples, difference, require_close
from kprune.deploy.graphs import graph_bytes, output_names
from kprune.deploy.hub_exporter import export_hub
from kprune.deploy.onnx import Quantizer
from kprune.deploy.targets import GGUF, LAYOUTS, ONNX, Target, require_installed, start, target_named, write
from kprune.errors import KpruneError
from kprune.models.families import family_of
from kprune.models.outputs import runs_encoder_only

log = logging.getLogger(__name__)


def export(
    source: Source | str | Path,
    folder: str | Path,
    *,
    to: str = "onnx",
    int8: bool = False,
    dtype: str | None = None,
    layout: str = "plain",
    texts: Sequence[str] | None = None,
    overwrite: bool = False,
    model: PreTrainedModel | None = None,
    quantizer: Quantizer | None = None,
) -> Exported:
    """Write a model folder for another runtime, checked against torch on texts of mixed length.

    With the layout `hub`, the folder has the graphs of all targets, in float32 and int8, and the weights, where servers
    and runtimes look for them; `to` and `int8` are not used. `texts` are Python's documentation by default. `model` is
    the model of `source` if it is loaded already. A float32 graph whose outputs differ by more than 1e-4, relative to
    outputs above 1, is an error. An int8 graph always differs; its difference is reported only. `quantizer` writes the
    int8 ONNX graph; by default all weights are quantised. `dtype` is the type of the weights in a GGUF file, float32 or
    float16; graphs have float32.
    """
    source, folder = Source.of(source), Path(folder)
    if layout not in LAYOUTS:
        raise KpruneError(f"there is no layout {layout!r}; use one of {', '.join(LAYOUTS)}.")
    target = target_named(to)
    require_installed(target, int8=int8)
    require_apart(source, folder)
    is_gguf = layout == "plain" and target is GGUF
    if dtype is not None and not is_gguf:
        raise KpruneError(f"graphs have float32 weights, not {dtype}; leave dtype out, or export to gguf.")
    if int8 and is_gguf:
        raise KpruneError("GGUF files are written in float32 or float16; leave int8 out.")
    model = _in_float32(source.load() if model is None else model)
    if is_gguf:
        return export_gguf(source, model, folder, dtype=dtype or "float32", texts=texts, overwrite=overwrite)
    if layout == "hub":
        return export_hub(source, model, folder, texts=texts, overwrite=overwrite, quantizer=quantizer)
    if quantizer is not None and not (int8 and target is ONNX):
        raise KpruneError("matrices can stay in float32 in int8 graphs for ONNX Runtime only; use --to onnx --int8.")
    return _export_plain(
        source, model, folder, target, int8=int8, texts=texts, overwrite=overwrite, quantizer=quantizer
    )


def _export_plain(
    source: Source,
    model: PreTrainedModel,
    folder: Path,
    target: Target,
    *,
    int8: bool,
    texts: Sequence[str] | None,
    overwrite: bool,
    quantizer: Quantizer | None,
) -> Exported:
    """Write one graph where the weights were."""
    batches = check_inputs(source, model, texts)
    title = source.title
    if runs_encoder_only(model):
        title = f"the encoder of {title}"
        log.warning("only %s is exported: graphs hold no decoder", title)
    outputs = output_names(model, batches[0])
    place = Path(source.encoder_path) / target.file
    with staged_folder(folder, overwrite=overwrite) as staging:
        write_side_files(source, model, staging)
        if quantizer is None:
            write(model, batches[0], staging / place, int8=int8)
        else:
            onnx.write(model, batches[0], staging / place, int8=True, quantizer=quantizer)
        largest, size = difference(model, start(staging / place), outputs, batches)
        if not int8:
            require_close(target.name, largest, size)
        graph = Graph(folder / place, target.name, int8, largest, graph_bytes(staging / place))
        card = graph_card(
            title,
            folder=source.encoder_path,
            target=target,
            int8=int8,
            difference=largest,
            texts=count_examples(batches),
            inputs=list(batches[0]),
            outputs=outputs,
            note=quantizer.describe() if quantizer else "",
        )
        (staging / "README.md").write_text(card, encoding="utf-8")
    return Exported.of(folder, (graph,), source, count_examples(batches), outputs)


def require_apart(source: Source, folder: Path) -> None:
    """Raise if the output folder is the model's own folder, or one contains the other."""
    ours, theirs = folder.resolve(), source.folder.resolve()
    if ours == theirs or ours in theirs.parents or theirs in ours.parents:
        raise KpruneError(f"{folder} is, contains or is inside the folder of {source.name}; choose another folder.")


def _in_float32(model: PreTrainedModel) -> PreTrainedModel:
    """The model on the CPU, in float32 and evaluation mode; a copy if the given one differs."""
    is_ready = not model.training and all(
        each.dtype == torch.float32 and each.device.type == "cpu" for each in model.parameters()
    )
    return model if is_ready else copy.deepcopy(model).float().cpu().eval()


def write_side_files(source: Source, model: PreTrainedModel, staging: Path) -> None:
    """Copy the source's files, and write the config and the tokenizer that a graph needs."""
    source.copy_to(staging)
    encoder = staging / source.encoder_path
    _without_record(model.config).save_pretrained(encoder)
    drop_modeling(encoder)
    if family_of(model.config).inputs == "input_ids" and not (encoder / "tokenizer.json").exists():
        source.load_tokenizer().save_pretrained(encoder)


def _without_record(config: Any) -> Any:
    """A copy of the config without the pruning record: loaders of graphs would look for its plug-in."""
    config = copy.deepcopy(config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config
