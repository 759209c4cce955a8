"""Random images and sounds of the shape that a model reads."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from kprune.models.passes import stream_length

SECOND = 16_000
"""Samples of a second of sound, at the rate of speech models."""
FIXED_INPUTS = ("pixel_values", "input_features")
"""Inputs of one size, so that a model makes the same number of tokens of each; of all others, the length may change."""


def example_inputs(name: str, config: PreTrainedConfig, examples: int) -> dict[str, Tensor]:
    """Random images or sounds of the shape that a model reads; `name` is its main input."""
    shape: tuple[int, ...] = (SECOND,)
    if name == "pixel_values":
        size = config.image_size
        shape = (getattr(config, "num_channels", 3), *(size if isinstance(size, list | tuple) else (size, size)))
    elif name == "input_features":
        shape = (config.num_mel_bins, 2 * config.max_source_positions)
    return {name: torch.randn(examples, *shape, generator=torch.Generator().manual_seed(0))}


def fixed_length(model: PreTrainedModel) -> int | None:
    """Tokens that a model makes of every input, such as an image's patches; None: it depends on the input."""
    name = model.main_input_name
    return stream_length(model, example_inputs(name, model.config, 1)) if name in FIXED_INPUTS else None
