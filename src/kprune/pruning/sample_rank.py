"""How much of the model's input space a sample covers: the rank of the stream, beside that of random tokens.

A refit sees only directions that the sample has. Texts that are all alike have many tokens and few directions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.models.batches import Batch, Sample
from kprune.models.passes import advance, embed, layers_of
from kprune.runtime.distributed import rank

MOST_TOKENS = 4096
"""Tokens that the ranks are computed from."""
DEPTH = 2
"""Layers that the tokens pass: words then know their context, and special tokens do not dominate yet."""
SMALLEST = 1e-3
"""A direction counts if its variance is at least this share of the largest."""
LEAST_SHARE = 0.8
"""Share of the rank of random tokens below which a sample is called uniform; real text has 0.95 and more."""

log = logging.getLogger(__name__)


@torch.no_grad()
def warn_of_uniform_text(model: PreTrainedModel, sample: Sample) -> None:
    """Log a warning if the sample's texts are so alike that they cover few directions of the stream."""
    if rank() > 0 or "input_ids" not in sample.batches[0].inputs:
        return
    batches = _some(sample.batches)
    generator = torch.Generator().manual_seed(0)
    random = [_with_random_tokens(batch, model.config.vocab_size, generator) for batch in batches]
    seen, possible = stream_rank(model, batches), stream_rank(model, random)
    if seen < LEAST_SHARE * possible:
        log.warning(
            "the texts are much alike: they cover %d directions of the residual stream, random tokens %d; "
            "the refit does not see the others, so use more varied text",
            seen,
            possible,
        )


def stream_rank(model: PreTrainedModel, batches: Sequence[Batch]) -> int:
    """The number of directions in which the stream varies after the lowest layers, each dimension scaled to 1."""
    streams = []
    for batch in batches:
        stream = embed(model, batch)
        for index in range(min(DEPTH, len(layers_of(model)))):
            stream = advance(model, batch, index, stream)
        streams.append(batch.real(stream).double())
    return _numerical_rank(torch.cat(streams))


def _numerical_rank(values: Tensor) -> int:
    centred = values - values.mean(0)
    scaled = centred / centred.square().mean(0).sqrt().clamp(min=1e-12)
    variances = torch.linalg.eigvalsh(scaled.T @ scaled)
    return int((variances >= SMALLEST * variances[-1]).sum())


def _some(batches: Sequence[Batch]) -> list[Batch]:
    """Batches of all lengths with about `MOST_TOKENS` real tokens together, or one example's."""
    total = sum(batch.real_tokens for batch in batches)
    share = min(1.0, MOST_TOKENS / total)
    return [batch.rows(slice(0, max(1, round(share * len(batch.example))))) for batch in batches]


def _with_random_tokens(batch: Batch, vocabulary: int, generator: torch.Generator) -> Batch:
    """The batch with tokens drawn from the whole vocabulary in the place of its text."""
    ids = batch.inputs["input_ids"]
    drawn = torch.randint(vocabulary, ids.shape, generator=generator).to(ids.device, ids.dtype)
    return replace(batch, inputs={**batch.inputs, "input_ids": ids.where(~batch.mask, drawn)})
