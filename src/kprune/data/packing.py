"""Rows of text packed into blocks without padding, for causal language models."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from kprune.data.rows import Row
from kprune.errors import BadSample

BLOCK_TOKENS = 256
"""Tokens per block of the sample, unless --max-length names another number."""
BLOCKS_PER_BATCH = 16
CHARACTERS_PER_TOKEN = 8
"""More than a token has in most languages: rows are drawn in runs that fill about a block."""


def draw_blocks(
    rows: Sequence[Row], tokenizer: Any, *, tokens: int, length: int, seed: int
) -> tuple[list[dict[str, Tensor]], int]:
    """Batches of whole blocks of `length` tokens, until they hold `tokens`; and the number of tokens.

    Runs of consecutive rows are drawn by seed without replacement. Their tokens are joined in that order and cut; the
    last block is dropped if it is not full.
    """
    if length < 2:
        raise BadSample(f"max_length is {length}, but a block needs 2 tokens or more; {BLOCK_TOKENS} is usual.")
    runs = list(_runs(rows, CHARACTERS_PER_TOKEN * length))
    random.Random(seed).shuffle(runs)
    wanted = -(-tokens // length)
    stream = chain.from_iterable(document_tokens(run, tokenizer) for run in runs)
    found = torch.tensor(list(islice(stream, wanted * length)), dtype=torch.long)
    if rows and len(found) < length:
        raise BadSample(
            f"the data hold {len(found)} tokens, fewer than a block of {length}; add text, or use a smaller max_length."
        )
    blocks = found[: len(found) // length * length].view(-1, length)
    batches = [{"input_ids": part, "attention_mask": torch.ones_like(part)} for part in blocks.split(BLOCKS_PER_BATCH)]
    return (batches if len(blocks) else []), blocks.numel()


def document_tokens(rows: Sequence[Row], tokenizer: Any) -> Iterator[int]:
    """Tokens of rows in order, with those that the tokenizer adds; each ends with the end-of-text token if it exists.

    A pair is one row: its second text is on a line of its own.
    """
    end = tokenizer.eos_token_id
    for found in tokenizer(["\n".join(row) for row in rows], verbose=False)["input_ids"]:
        yield from found
        if end is not None and found[-1:] != [end]:
            yield end


def added_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before and after a text."""
    plain, whole = (tokenizer("a", add_special_tokens=flag)["input_ids"] for flag in (False, True))
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return [], []


def _runs(rows: Sequence[Row], characters: int) -> Iterator[list[Row]]:
    """Consecutive rows in groups of at least so many characters."""
    run: list[Row] = []
    size = 0
    for row in rows:
        run.append(row)
        size += sum(map(len, row))
        if size >= characters:
            yield run
            run, size = [], 0
    if run:
        yield run
