"""The contents of a checkpoint folder, read from its config and the headers of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from kprune.checkpoints.source import Source
from kprune.models.example_inputs import fixed_length
from kprune.models.native import dense_config, history_of
from kprune.models.pruned_shape import Record, apply, dense_units, record_of
from kprune.models.sublayer import find
from kprune.pruning.budgets import total_flops

DEFAULT_LENGTH = 128.0


@dataclass(frozen=True)
class Shape:
    """Units left in each layer, bottom to top, and units per layer of the dense model."""

    heads: Sequence[int]
    neurons: Sequence[int]
    dense_heads: int
    dense_neurons: int


@dataclass(frozen=True)
class Vocabulary:
    """Embeddings of tokens and the output layer of a language model, which no budget counts."""

    flops: float
    """Of the output layer, for one input."""
    parameters: int


@dataclass(frozen=True)
class Inspection:
    """A checkpoint's shape and size, and the size of the dense model."""

    model_type: str
    shape: Shape
    length: float
    """Tokens per input for which FLOPs are counted."""
    flops: tuple[float, float]
    """Encoder FLOPs for one such input, dense and present."""
    parameters: tuple[int, int]
    """Dense and present."""
    bytes_on_disk: int
    history: list[dict[str, Any]]
    vocabulary: Vocabulary | None = None
    """What the output layer over a vocabulary adds; None if the model has none."""


def inspect(folder: str | Path, length: float | None = None) -> Inspection:
    """Shape and size of a checkpoint; FLOPs for `length` tokens, or else for the sample's mean length.

    A dense model of images counts its patches, another dense model 128 tokens.

    Weights that are missing, or that do not fit the config and the record, are an error.
    """
    source = Source(folder)
    source.require_checkpoint()
    config = source.load_config()
    record = record_of(config)
    source.require_weights(config)
    history = history_of(config)
    model_class = source.class_of(config)
    if length is None:
        length = _mean_length(history) or _fixed_length(model_class, config) or DEFAULT_LENGTH
    dense_flops, dense_parameters, _ = _measure_size(model_class, dense_config(config), None, length)
    flops, parameters, units = _measure_size(model_class, config, record, length)
    dense = dense_units(dense_config(config))
    return Inspection(
        model_type=config.model_type,
        shape=Shape(units["attention"], units["ffn"], dense["attention"], dense["ffn"]),
        length=length,
        flops=(dense_flops, flops),
        parameters=(dense_parameters, parameters),
        bytes_on_disk=sum(file.stat().st_size for file in source.folder.rglob("*") if file.is_file()),
        history=history,
        vocabulary=_vocabulary(model_class, config, length),
    )


def _mean_length(history: list[dict[str, Any]]) -> float | None:
    """Mean length of the last sample in the history, if there is one."""
    last = history[-1] if history else {}
    tokens, examples = last.get("tokens"), last.get("examples")
    if isinstance(tokens, int) and isinstance(examples, int) and tokens > 0 and examples > 0:
        return tokens / examples
    return None


def _fixed_length(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> int | None:
    """Tokens of every input of a dense model, such as an image's patches, if the config says how many."""
    with torch.device("meta"):
        return fixed_length(model_class._from_config(config))


def _vocabulary(model_class: type[PreTrainedModel], config: PreTrainedConfig, length: float) -> Vocabulary | None:
    """FLOPs and parameters of a language model's output layer and embeddings, which share weights if they are tied."""
    with torch.device("meta"):
        model: PreTrainedModel = model_class._from_config(config)
    output = model.get_output_embeddings()
    if output is None:
        return None
    matrices = [layer.get_parameter("weight") for layer in (output, model.get_input_embeddings())]
    own = {id(matrix): matrix.numel() for matrix in matrices}
    return Vocabulary(2.0 * length * matrices[0].numel(), sum(own.values()))


def _measure_size(
    model_class: type[PreTrainedModel], config: PreTrainedConfig, record: Record | None, length: float
) -> tuple[float, int, dict[str, list[int]]]:
    """FLOPs, parameters and units per kind and layer, of a model built on the meta device."""
    with torch.device("meta"):
        model: PreTrainedModel = model_class._from_config(config)
    if record is not None:
        apply(record, model)
    sublayers = find(model)
    units: dict[str, list[int]] = {}
    for sublayer in sublayers:
        units.setdefault(sublayer.kind, []).append(sublayer.units)
    return total_flops(sublayers, length), model.num_parameters(), units
