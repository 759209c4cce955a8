"""Compare a graph with torch, on texts or on random inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.checkpoints.source import Source
from kprune.data.calibration import longest_input, python_documentation
from kprune.deploy.graphs import Run, output_values
from kprune.errors import BadSample, KpruneError
from kprune.models.example_inputs import example_inputs
from kprune.models.families import family_of

TOLERANCE = 1e-4
"""Largest accepted difference between a float32 graph and torch, for outputs of size 1 or less."""
CHECKED_TEXTS = 64
CHECKED_BATCH = 8


def check_inputs(source: Source, model: PreTrainedModel, texts: Sequence[str] | None) -> list[dict[str, Tensor]]:
    """Batches to check a graph on: texts of mixed length, or random images or sounds."""
    name = family_of(model.config).inputs
    if name != "input_ids":
        return [example_inputs(name, model.config, examples) for examples in (CHECKED_BATCH, 1)]
    tokenizer = source.load_tokenizer()
    return encode(tokenizer, checked_texts(texts), longest_input(tokenizer, model.config))


def checked_texts(texts: Sequence[str] | None) -> list[str]:
    """The texts on which a graph is checked: the first ones, or those of Python's documentation."""
    return list(texts or python_documentation())[:CHECKED_TEXTS]


def encode(tokenizer: Any, texts: Sequence[str], longest: int) -> list[dict[str, Tensor]]:
    """Texts as padded batches of inputs."""
    batches = [
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
    for number, batch in enumerate(batches):
        if not batch["input_ids"].shape[1]:
            raise BadSample(
                f"the tokenizer reads no token in {texts[number * CHECKED_BATCH]!r:.60}; use the tokenizer that the "
                "model was trained with, or other texts."
            )
    return batches


def count_examples(batches: list[dict[str, Tensor]]) -> int:
    """Number of texts, images or sounds in batches."""
    return sum(len(next(iter(batch.values()))) for batch in batches)


@torch.no_grad()
def difference(
    model: PreTrainedModel,
    run: Run,
    outputs: list[str],
    batches: list[dict[str, Tensor]],
    *,
    pooling: str | None = None,
) -> tuple[float, float]:
    """Largest absolute difference of a graph's outputs from torch's on real tokens, and the largest output."""
    largest = size = 0.0
    for batch in batches:
        expected = output_values(model, batch, pooling)
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


def require_close(to: str, largest: float, size: float) -> None:
    """Raise if the largest difference is above the tolerance, which is relative for outputs above 1."""
    if largest > TOLERANCE * max(1.0, size):
        raise KpruneError(
            f"the {to} graph differs from torch by {largest:.2g}, more than {TOLERANCE:g}; nothing was written. "
            "Please report it with the model's config."
        )
