"""What a checkpoint folder holds, from its config alone: no weight is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from kprune.budget import total_flops
from kprune.errors import BadCheckpoint
from kprune.record import Record, apply, dense_units, record_of
from kprune.report import Shape
from kprune.store import GRAPHS, Source
from kprune.sublayer import find

DEFAULT_LENGTH = 128.0


@dataclass(frozen=True)
class Inspection:
    """A checkpoint's shape and size, beside those of the dense model that it was made from."""

    model_type: str
    shape: Shape
    length: float
    """Tokens of the input that FLOPs are counted for."""
    flops: tuple[float, float]
    """Encoder FLOPs on one such input, dense and present."""
    parameters: tuple[int, int]
    """Dense and present."""
    bytes_on_disk: int
    history: list[dict[str, Any]]


def inspect(folder: Path, length: float | None = None) -> Inspection:
    """What a folder holds; FLOPs for inputs of `length` tokens, or else of the sample's mean length."""
    source = Source(folder)
    if not any(source.encoder.glob("*.safetensors")) and any((source.encoder / name).is_file() for name in GRAPHS):
        raise BadCheckpoint(f"{folder} holds a graph, not a checkpoint; inspect the folder that it was exported from.")
    config = source.load_config()
    record = record_of(config)
    history = record["history"] if record else []
    if length is None:
        length = _mean_length(history)
    kind = source.class_of(config)
    dense_flops, dense_parameters, _ = _size(kind, config, None, length)
    flops, parameters, units = _size(kind, config, record, length)
    dense = dense_units(config)
    return Inspection(
        model_type=config.model_type,
        shape=Shape(units["attention"], units["ffn"], dense["attention"], dense["ffn"]),
        length=length,
        flops=(dense_flops, flops),
        parameters=(dense_parameters, parameters),
        bytes_on_disk=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        history=history,
    )


def _mean_length(history: list[dict[str, Any]]) -> float:
    """The mean length of the last sample that the record tells of."""
    last = history[-1] if history else {}
    tokens, examples = last.get("tokens"), last.get("examples")
    if isinstance(tokens, int) and isinstance(examples, int) and tokens > 0 and examples > 0:
        return tokens / examples
    return DEFAULT_LENGTH


def _size(
    kind: type[PreTrainedModel], config: PreTrainedConfig, record: Record | None, length: float
) -> tuple[float, int, dict[str, list[int]]]:
    """FLOPs, parameters and units per kind and layer of a model built without weights."""
    with torch.device("meta"):
        model: PreTrainedModel = kind._from_config(config)
    if record is not None:
        apply(record, model)
    sublayers = find(model)
    units: dict[str, list[int]] = {}
    for sublayer in sublayers:
        units.setdefault(sublayer.kind, []).append(sublayer.units)
    return total_flops(sublayers, length), model.num_parameters(), units
