"""The given batches, regrouped for measurements; checks of the sample and the model before any work."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from kprune.config import PruneConfig
from kprune.errors import BadSample, NotFinite
from kprune.models.batches import OTHER_INPUTS, Example, Sample, examples_of, regroup, require_fit
from kprune.models.outputs import OutputKind
from kprune.models.passes import has_partial_head, stream_length
from kprune.models.sublayer import Sublayer, find
from kprune.pruning.memory_policy import activation_bytes
from kprune.runtime.distributed import shard, world_size

SOUND_RIDGE = 1e-4
"""The smallest ridge that makes a refit with fewer tokens than features sound."""

AMPLE = 4
"""Tokens per feature below which a refit follows the sample more than the language."""

log = logging.getLogger(__name__)


def sample_for(
    model: PreTrainedModel, kind: OutputKind, batches: Iterable[Mapping[str, Tensor]], config: PruneConfig
) -> Sample:
    """The batches, regrouped so that the activations of one pass fit into memory.

    With several processes each gets a shard of the batches; `examples` and `tokens` count those of all processes.
    """
    # The backward pass of a layer needs the features twice and about eight vectors of the stream's width.
    per_token = sum(2 * sublayer.features + 4 * sublayer.consumer.out_features for sublayer in find(model))
    if kind.is_vocabulary and not has_partial_head(model):
        per_token += 4 * model.config.vocab_size
    examples = examples_of(batches, partial(stream_length, model), pad_id_of(model.config))
    require_fit(examples, model.config)
    tokens = activation_bytes(config, model.num_parameters()) // (4 * per_token)
    # Several batches per process balance the load; one process uses the batches of two, for equal results.
    tokens = min(tokens, sum(len(example["attention_mask"]) for example in examples) // (4 * max(world_size(), 2)))
    pad_id = getattr(model.config, "pad_token_id", None) or 0  # configs of images have none
    sample = regroup(examples, tokens=tokens, pad_id=pad_id, device=model.device)
    distinct = _distinct_lengths(examples, kind)
    sample = replace(sample, distinct_examples=len(distinct), distinct_tokens=sum(distinct))
    if world_size() == 1:
        return sample
    if len(sample.batches) < world_size():
        raise BadSample(
            f"the sample has {len(sample.batches)} batches, too few for {world_size()} processes; "
            "use fewer processes or more text."
        )
    return replace(sample, batches=shard(sample.batches))


def pad_id_of(config: PreTrainedConfig) -> int | None:
    """The token that pads texts; None if texts may end with it, too."""
    pad: int | None = getattr(config, "pad_token_id", None)
    return None if pad == getattr(config, "eos_token_id", None) else pad


def _distinct_lengths(examples: Sequence[Example], kind: OutputKind) -> list[int]:
    """Real tokens of each example, repetitions left out; the same text with other masked tokens is a repetition."""
    lengths: dict[bytes, int] = {}
    for example in examples:
        inputs = next(name for name in ("input_ids", *OTHER_INPUTS) if name in example)
        ids, labels = example[inputs], example.get("labels")
        if kind.is_vocabulary and labels is not None and labels.shape == ids.shape:
            ids = ids.where(labels == -100, labels)
        values = ids.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        lengths[values] = int(example["attention_mask"].bool().sum())
    return list(lengths.values())


def require_enough(sample: Sample, sublayers: Sequence[Sublayer], ridge: float | None) -> None:
    """Raise if different examples have fewer tokens than a refit has features, unless a large ridge was requested.

    A repeated example adds nothing to the rank of the features: their rank is at most the tokens of different examples.
    """
    widest = max((sublayer.features for sublayer in sublayers), default=0)
    examples = sample.examples if sample.distinct_examples is None else sample.distinct_examples
    tokens = sample.tokens if sample.distinct_tokens is None else sample.distinct_tokens
    are_repeated = examples < sample.examples
    if tokens < widest and (ridge is None or ridge < SOUND_RIDGE):
        raise BadSample(
            f"the sample has {sample.tokens} tokens, but "
            + (f"only {tokens} in different examples ({examples} of {sample.examples}), and " if are_repeated else "")
            + f"the refit of {widest} features needs at least as many: add {widest - tokens} "
            f"{'other ' if are_repeated else ''}tokens or more (100,000 are usual), or a ridge of {SOUND_RIDGE:g} or "
            "more."
        )
    _warn_of_few(tokens, widest)
    if 2 * examples < sample.examples:
        log.warning(
            "only %d of %d examples are different: repetitions add nothing; use other text", examples, sample.examples
        )


def _warn_of_few(tokens: int, widest: int) -> None:
    if tokens < widest:
        log.warning("%d tokens are few for the refit of %d features: the ridge has much influence", tokens, widest)
    elif tokens < AMPLE * widest:
        advice = "%d tokens in different examples are few for the refit of %d features: use %d or more"
        log.warning(advice, tokens, widest, AMPLE * widest)


def require_finite_weights(model: PreTrainedModel) -> None:
    """Raise if a weight is NaN or infinite."""
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise NotFinite(f"the weight {name} has NaN or infinite entries; restore or download the checkpoint again.")
