"""The text of healing: a held-out part that judges, and parts that are trained on, some passes each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.config import HealConfig
from kprune.errors import BadSample
from kprune.healing.heal_loss import Size
from kprune.models.batches import Batch, Example, examples_of, regroup, require_fit
from kprune.models.passes import stream_length
from kprune.pruning.sampling import pad_id_of
from kprune.runtime.distributed import rank, world_size

FEWEST_HELD_OUT = 8
"""Examples that are held out, at least, unless this is more than half."""


@dataclass(frozen=True)
class Text:
    """All batches of a run."""

    parts: list[list[Batch]]
    """Batches to train on. After some passes over a part comes the next one, and the first one after the last."""
    held_out: list[Batch]
    sizes: list[Size]
    """Examples and real tokens of each part."""
    held_out_examples: int


def text_of(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    judged_by: Iterable[Mapping[str, Tensor]] | None,
    config: HealConfig,
    pass_tokens: int | None,
) -> tuple[Text, list[Example]]:
    """The batches, regrouped for training, with a held-out part unless it is given; and all examples, in their order.

    `pass_tokens` is the size of a pass: a text that is larger is divided into parts. None: a pass reads all of it.
    """
    trained = _examples(model, batches)
    if judged_by is not None:
        held_out = _examples(model, judged_by)
    elif len(trained) < 2:
        raise BadSample("healing needs two examples or more, one of which is held out; pass more text.")
    else:
        held_out, trained = _split(trained, config, pass_tokens)
    tokens = _tokens(trained)
    count = max(1, min(len(trained), round(tokens / (pass_tokens or tokens))))
    bounds = [len(trained) * number // count for number in range(count + 1)]

    def grouped(chosen: Sequence[Example]) -> list[Batch]:
        pad_id = getattr(model.config, "pad_token_id", None) or 0
        return regroup(list(chosen), tokens=config.step_tokens, pad_id=pad_id, device=model.device).batches

    parts = [grouped(trained[start:end]) for start, end in pairwise(bounds)]
    sizes = [Size(end - start, _tokens(trained[start:end])) for start, end in pairwise(bounds)]
    return Text(parts, grouped(held_out), sizes, len(held_out)), [*trained, *held_out]


def _examples(model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]]) -> list[Example]:
    examples = examples_of(batches, partial(stream_length, model), pad_id_of(model.config))
    require_fit(examples, model.config)
    return examples


def _split(examples: list[Example], config: HealConfig, pass_tokens: int | None) -> tuple[list[Example], list[Example]]:
    """The held-out examples, drawn by seed until they hold their share of a pass's tokens; and all others."""
    generator = torch.Generator().manual_seed(config.seed)
    order: list[int] = torch.randperm(len(examples), generator=generator).tolist()
    wanted = config.held_out * min(pass_tokens or _tokens(examples), _tokens(examples))
    fewest, most = min(FEWEST_HELD_OUT, len(examples) // 2), len(examples) - 1
    chosen: set[int] = set()
    held = 0
    for number in order[:most]:
        if held >= wanted and len(chosen) >= fewest:
            break
        chosen.add(number)
        held += _tokens([examples[number]])
    return (
        [examples[number] for number in sorted(chosen)],
        [example for number, example in enumerate(examples) if number not in chosen],
    )


def _tokens(examples: Sequence[Example]) -> int:
    return sum(len(example["attention_mask"]) for example in examples)


def own_part(batch: Batch) -> Batch | None:
    """This process's examples of a batch; None if there are too few for it."""
    count, own, processes = len(batch.example), rank(), world_size()
    rows = slice(count * own // processes, count * (own + 1) // processes)
    if rows.start == rows.stop:
        return None
    return batch if processes == 1 else batch.rows(rows)


def size_of(batch: Batch) -> Size:
    """Examples and real tokens of a whole batch."""
    return Size(len(batch.example), batch.real_tokens)
