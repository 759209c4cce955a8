"""Rows of text to calibration batches: tokenised, drawn by seed, masked or packed for language models."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig

from kprune.data.packing import draw_blocks
from kprune.data.rows import Row, row_of, texts_and_labels, warn_of_blank_rows
from kprune.errors import BadSample
from kprune.models.families import max_positions

log = logging.getLogger(__name__)

CHUNK = 64
"""Rows that are tokenised in one call."""
MASKED_SHARE = 0.15
"""Share of tokens that are masked for a masked language model."""


def draw(
    rows: Any,
    tokenizer: Any,
    *,
    tokens: int,
    max_length: int,
    columns: Sequence[str] = (),
    seed: int = 0,
    masked: bool = False,
    packed: bool = False,
    labels: Sequence[float] | None = None,
    is_most: bool = False,
) -> list[dict[str, Tensor]]:
    """Tokenised batches of rows, drawn without replacement until they hold `tokens` tokens without padding.

    `rows` are a list or an iterator of texts, of pairs of texts or of dicts, a Dataset, a DataFrame or a Series. Of
    dicts, `columns` names one or two columns; it may be left out where there is only one with text.
    With `masked`, some tokens are masked, and the batch's `labels` hold the original tokens there and −100 elsewhere.
    With `packed`, for causal language models, rows are joined and cut into blocks of `max_length` tokens.
    `labels` gives one number per row; each batch then carries the labels of its rows.
    With `is_most`, fewer tokens are as good: no warning tells that the data hold less.
    """
    require_tokenizer_type(tokenizer)
    tokens = whole_number("tokens", tokens, "100,000")
    max_length = whole_number("max_length", max_length, "128")
    if tokens < 1:
        raise BadSample(f"the sample size is {tokens} tokens; ask for 1 or more (100,000 is usual).")
    rows, labels = _rows_and_labels(rows, columns, labels)
    if packed:
        if masked or labels is not None:
            raise BadSample("blocks of joined rows have no masked tokens and no labels; leave masked and labels out.")
        return _draw_packed(rows, tokenizer, tokens, max_length, seed, is_most=is_most)
    require_room(rows, tokenizer, max_length)
    generator = torch.Generator().manual_seed(seed)
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    batches: list[dict[str, Tensor]] = []
    missing = tokens
    for start in range(0, len(order), CHUNK):
        chunk = order[start : start + CHUNK]
        encoded = _tokenize([rows[number] for number in chunk], tokenizer, max_length)
        lengths = encoded["attention_mask"].sum(1)
        wanted = int((lengths.cumsum(0) - lengths < missing).sum())
        batch = {name: value[:wanted] for name, value in encoded.items()}
        if labels is not None:
            batch["labels"] = torch.tensor([labels[number] for number in chunk[:wanted]])
        batches.append(_mask_tokens(batch, tokenizer, generator) if masked else batch)
        missing -= int(lengths[:wanted].sum())
        if missing <= 0:
            return batches
    _require_text(batches, tokens - missing, tokens, is_most)
    return batches


def _draw_packed(
    rows: Sequence[Row], tokenizer: Any, tokens: int, length: int, seed: int, *, is_most: bool
) -> list[dict[str, Tensor]]:
    batches, held = draw_blocks(rows, tokenizer, tokens=tokens, length=length, seed=seed)
    if held < tokens:
        _require_text(batches, held, tokens, is_most)
    return batches


def _require_text(batches: Sequence[Any], held: int, tokens: int, is_most: bool) -> None:
    """Raise if the data have no text; log that they have less than was requested."""
    if not batches:
        raise BadSample("the sample has no text; pass a file or a data set with at least one row of text.")
    if not is_most:
        log.warning("the data hold %d tokens, fewer than the requested %d; all of them are used", held, tokens)


def require_tokenizer_type(tokenizer: Any) -> None:
    """Raise if an object is no tokenizer."""
    if isinstance(tokenizer, type) or not (callable(tokenizer) and hasattr(tokenizer, "get_vocab")):
        raise BadSample(
            f"the tokenizer has the type {type(tokenizer).__name__}; pass a tokenizer, such as "
            "AutoTokenizer.from_pretrained(folder)."
        )


def whole_number(name: str, value: Any, example: str) -> int:
    """The value as an int; raises if it is no whole number."""
    if isinstance(value, bool) or not isinstance(value, Real) or float(value) % 1 != 0:
        raise BadSample(f"{name} is {value!r} ({type(value).__name__}); pass a whole number, such as {example}.")
    return int(float(value))


def _rows_and_labels(
    data: Any, columns: Sequence[str], labels: Sequence[float] | None
) -> tuple[list[Row], Sequence[float] | None]:
    """The rows with text, and their labels."""
    found = [row_of(texts) for texts, _ in texts_and_labels(data, columns, None, "the sample")]
    rows = [row for row in found if row is not None]
    if labels is None:
        return rows, None
    if len(labels) != len(found):
        raise BadSample(f"the sample has {len(found)} rows and {len(labels)} labels; give one for each row.")
    warn_of_blank_rows(len(found) - len(rows), len(found), "the sample")
    return rows, [label for row, label in zip(found, labels, strict=True) if row is not None]


def require_room(rows: Sequence[Row], tokenizer: Any, max_length: int) -> None:
    """Raise if `max_length` leaves no room for text: some tokenizers then do not truncate at all."""
    texts = len(rows[0]) if rows else 1
    special = tokenizer.num_special_tokens_to_add(pair=texts == 2)
    if max_length < special + texts:
        raise BadSample(
            f"max_length is {max_length}, but the tokenizer adds {special} special tokens to each input; "
            f"use {special + texts} or more (128 is usual)."
        )


def longest_input(tokenizer: Any, config: PreTrainedConfig) -> int:
    """The most tokens that both the model's positions and its tokenizer allow."""
    return min(max_positions(config), int(tokenizer.model_max_length))


def python_documentation() -> list[str]:
    """Paragraphs of prose from Python's language reference, always in the same order.

    Every Python installation contains this text for `help()`. It serves as real text when the user passes none.
    """
    from pydoc_data.topics import topics

    paragraphs: dict[str, None] = {}
    for text in topics.values():
        for paragraph in re.split(r"\n\s*\n", text):
            joined = " ".join(paragraph.split())
            letters = sum(character.isalpha() or character == " " for character in joined)
            if len(joined) > 60 and letters > 0.85 * len(joined) and joined[0].isupper():
                paragraphs[joined] = None
    ordered = list(paragraphs)
    random.Random(0).shuffle(ordered)
    return ordered


def _tokenize(rows: Sequence[Row], tokenizer: Any, max_length: int) -> dict[str, Tensor]:
    """Rows as one padded batch of tensors; the end-of-text token pads where the tokenizer has no padding token."""
    columns = (list(column) for column in zip(*rows, strict=True))
    if tokenizer.pad_token_id is not None:
        return dict(tokenizer(*columns, truncation=True, max_length=max_length, padding=True, return_tensors="pt"))
    encoded = tokenizer(*columns, truncation=True, max_length=max_length)
    fill = {"input_ids": tokenizer.eos_token_id or 0}
    return {
        name: pad_sequence([torch.tensor(entry) for entry in entries], True, fill.get(name, 0))
        for name, entries in encoded.items()
    }


def _mask_tokens(batch: dict[str, Tensor], tokenizer: Any, generator: torch.Generator) -> dict[str, Tensor]:
    # DataCollatorForLanguageModeling draws other random numbers, which would change published results.
    ids = batch["input_ids"]
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    chosen = (torch.rand(ids.shape, generator=generator) < MASKED_SHARE) & ~special
    return {
        **batch,
        "input_ids": ids.masked_fill(chosen, tokenizer.mask_token_id),
        "labels": ids.masked_fill(~chosen, -100),
    }
