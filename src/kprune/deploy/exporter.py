"""Export a checkpoint folder for ONNX Runtime or OpenVINO, and check the graph against torch on text."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.checkpoints.atomic import staged_folder
from kprune.checkpoints.source import Source
from kprune.data.calibration import longest_input, python_documentation
from kprune.deploy.graph_card import graph_card
from kprune.deploy.graphs import Run, graph_files, output_names, served_model
from kprune.deploy.targets import require_installed, start, target_named, write
from kprune.errors import KpruneError
from kprune.models.example_inputs import example_inputs
from kprune.models.families import family_of
from kprune.models.outputs import runs_encoder_only
from kprune.models.passes import run as run_model

log = logging.getLogger(__name__)

TOLERANCE = 1e-4
"""Largest accepted difference between a float32 graph and torch, for outputs of size 1 or less."""
CHECKED_TEXTS = 64
CHECKED_BATCH = 8


@dataclass(frozen=True)
class Exported:
    """An exported graph, and its difference from torch."""

    folder: Path
    file: Path
    """The graph itself."""
    target: str
    int8: bool
    texts: int
    """Number of texts on which the graph was checked."""
    difference: float
    """Largest difference from torch in any output, on real tokens."""
    bytes: tuple[int, int]
    """Size on disk: the safetensors weights, and the graph."""
    outputs: list[str]

    def model(self, model: PreTrainedModel) -> PreTrainedModel:
        """A copy of `model` that runs the graph and can be evaluated like any model."""
        return served_model(model, start(self.file), self.outputs)


def export(
    source: Source | str | Path,
    folder: str | Path,
    *,
    to: str = "onnx",
    int8: bool = False,
    texts: Sequence[str] | None = None,
    overwrite: bool = False,
    model: PreTrainedModel | None = None,
) -> Exported:
    """Write a model folder as a graph for another runtime, checked against torch on texts of mixed length.

    `texts` are Python's documentation by default. `model` is the model of `source` if it is loaded already. A float32
    graph whose outputs differ by more than 1e-4, relative to outputs above 1, is an error. An int8 graph always
    differs; its difference is reported only.
    """
    source, folder = Source.of(source), Path(folder)
    target = target_named(to)
    require_installed(target, int8=int8)
    require_apart(source, folder)
    model = _in_float32(source.load() if model is None else model)
    batches = _inputs(source, model, texts)
    title = source.title
    if runs_encoder_only(model):
        title = f"the encoder of {title}"
        log.warning("only %s is exported: graphs hold no decoder", title)
    outputs = output_names(model, batches[0])
    checked = sum(len(next(iter(batch.values()))) for batch in batches)
    with staged_folder(folder, overwrite=overwrite) as staging:
        _copy_side_files(source, model, staging)
        file = staging / source.encoder_path / target.file
        write(model, batches[0], file, int8=int8)
        largest, size = difference(model, start(file), outputs, batches)
        if not int8:
            _require_close(to, largest, size)
        before = sum(each.stat().st_size for each in source.encoder.glob("*.safetensors"))
        after = sum(each.stat().st_size for each in graph_files(file))
        card = graph_card(
            title,
            folder=source.encoder_path,
            target=target,
            int8=int8,
            difference=largest,
            texts=checked,
            inputs=list(batches[0]),
            outputs=outputs,
        )
        (staging / "README.md").write_text(card, encoding="utf-8")
    file = folder / source.encoder_path / target.file
    return Exported(folder, file, to, int8, checked, largest, (before, after), outputs)


def require_apart(source: Source, folder: Path) -> None:
    """Raise if the output folder is the model's own folder, or one contains the other."""
    ours, theirs = folder.resolve(), source.folder.resolve()
    if ours == theirs or ours in theirs.parents or theirs in ours.parents:
        raise KpruneError(f"{folder} is, contains or is inside the folder of {source.name}; choose another folder.")


@torch.no_grad()
def difference(
    model: PreTrainedModel, run: Run, outputs: list[str], batches: list[dict[str, Tensor]]
) -> tuple[float, float]:
    """Largest absolute difference of a graph's outputs from torch's on real tokens, and the largest output."""
    largest = size = 0.0
    for batch in batches:
        expected = run_model(model, batch)
        for name, actual in zip(outputs, run(batch), strict=True):
            ours = expected[name]
            if ours.shape != actual.shape:
                raise KpruneError(
                    f"the graph's {name} have shape {tuple(actual.shape)}, torch's {tuple(ours.shape)}; "
                    "please report it with the model's config."
                )
            if "input_ids" in batch and ours.shape[:2] == batch["input_ids"].shape:
                real = batch["attention_mask"].bool()
                ours, actual = ours[real], actual[real]
            gap = float((ours - actual).abs().max())
            if gap != gap:
                raise KpruneError(
                    f"the graph's {name} are not numbers (NaN); nothing was written. "
                    "Please report it with the model's config."
                )
            largest, size = max(largest, gap), max(size, float(ours.abs().max()))
    return largest, size


def _require_close(to: str, largest: float, size: float) -> None:
    """Raise if the largest difference is above the tolerance, which is relative for outputs above 1."""
    if largest > TOLERANCE * max(1.0, size):
        raise KpruneError(
            f"the {to} graph differs from torch by {largest:.2g}, more than {TOLERANCE:g}; nothing was written. "
            "Please report it with the model's config."
        )


def _in_float32(model: PreTrainedModel) -> PreTrainedModel:
    """The model on the CPU, in float32 and evaluation mode; a copy if the given one differs."""
    is_ready = not model.training and all(
        each.dtype == torch.float32 and each.device.type == "cpu" for each in model.parameters()
    )
    return model if is_ready else copy.deepcopy(model).float().cpu().eval()


def _copy_side_files(source: Source, model: PreTrainedModel, staging: Path) -> None:
    """Copy the source's files, and write the config and the tokenizer that a graph needs."""
    source.copy_to(staging)
    encoder = staging / source.encoder_path
    _without_record(model.config).save_pretrained(encoder)
    if family_of(model.config).inputs == "input_ids" and not (encoder / "tokenizer.json").exists():
        source.load_tokenizer().save_pretrained(encoder)


def _without_record(config: Any) -> Any:
    """A copy of the config without the pruning record: loaders of graphs would look for its plug-in."""
    config = copy.deepcopy(config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


def _inputs(source: Source, model: PreTrainedModel, texts: Sequence[str] | None) -> list[dict[str, Tensor]]:
    """Batches to check a graph on: texts of mixed length, or random images or sounds."""
    name = family_of(model.config).inputs
    if name == "input_ids":
        return _encode(source, model, list(texts or python_documentation())[:CHECKED_TEXTS])
    return [example_inputs(name, model.config, examples) for examples in (CHECKED_BATCH, 1)]


def _encode(source: Source, model: PreTrainedModel, texts: Sequence[str]) -> list[dict[str, Tensor]]:
    tokenizer = source.load_tokenizer()
    longest = longest_input(tokenizer, model.config)
    return [
        dict(
            tokenizer(
                list(texts[first : first + CHECKED_BATCH]),
                padding=True,
                truncation=True,
                max_length=longest,
                return_tensors="pt",
            )
        )
        for first in range(0, len(texts), CHECKED_BATCH)
    ]
