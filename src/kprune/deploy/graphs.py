"""Parts that the graphs of all targets share: inputs, outputs, and a torch model that runs a graph."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from kprune.models.outputs import POOLINGS_OF, embed
from kprune.models.passes import run

SENTENCE_EMBEDDING = "sentence_embedding"
"""Name of the pooled, normalised output; servers look for it by this name."""

Run = Callable[[Mapping[str, Tensor]], list[Tensor]]
"""A model that is ready to run: inputs by name to outputs in the order of `output_names`."""


def output_values(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], pooling: str | None = None
) -> dict[str, Tensor]:
    """A model's outputs by name, in order; a pooler output is left out unless it is the usual embedding.

    With a `pooling`, the pooled and normalised sentence embedding comes last.
    """
    outputs = run(model, inputs)
    values = {name: value for name, value in outputs.items() if isinstance(value, Tensor)}
    is_embedding = POOLINGS_OF.get(model.config.model_type) == "pooler"
    if "pooler_output" in values and not is_embedding and len(values) > 1:
        del values["pooler_output"]
    if pooling is not None:
        values[SENTENCE_EMBEDDING] = embed(outputs, inputs["attention_mask"].bool(), pooling)
    return values


@torch.no_grad()
def output_names(model: PreTrainedModel, inputs: Mapping[str, Tensor], pooling: str | None = None) -> list[str]:
    """Names of a model's outputs, in the order of its graph."""
    return list(output_values(model, inputs, pooling))


def numpy_inputs(inputs: Mapping[str, Tensor], names: list[str]) -> dict[str, Any]:
    """The inputs that a graph reads, as numpy arrays; an input that is not given, such as segments, is zero."""
    missing = {name: torch.zeros_like(inputs["input_ids"]) for name in names if name not in inputs}
    given = {**inputs, **missing}
    return {name: given[name].cpu().numpy() for name in names}


def graph_files(path: Path) -> list[Path]:
    """The files of an exported graph; OpenVINO keeps its weights in a second file."""
    return [file for file in (path, path.with_suffix(".bin")) if file.is_file()]


def graph_bytes(path: Path) -> int:
    """Size of an exported graph on disk."""
    return sum(file.stat().st_size for file in graph_files(path))


def served_model(model: PreTrainedModel, graph: Run, outputs: list[str]) -> PreTrainedModel:
    """A model of the same class and config whose forward pass calls `graph`; its own weights are not used."""
    served = copy.copy(model)

    def forward(**inputs: Any) -> ModelOutput:
        tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
        return ModelOutput(zip(outputs, graph(tensors), strict=True))

    served.forward = forward
    setattr(served, "get_encoder", lambda: served)  # noqa: B010  # what is called if a decoder follows
    return served


@contextmanager
def silence_exporters() -> Iterator[None]:
    """Suppress warnings and messages of the exporters, on which a user cannot act."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
