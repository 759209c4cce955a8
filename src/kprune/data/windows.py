"""Running text cut into windows, on which the perplexity of a causal language model is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kprune.data.packing import CHARACTERS_PER_TOKEN
from kprune.errors import BadSample

WINDOW_TOKENS = 1024
"""Tokens per window, unless the model has fewer positions."""
SEPARATOR = "\n\n"
"""What is between two rows of running text."""
MARGIN = 64
"""Tokens at the end of a cut text that its missing rest could change."""


@dataclass(frozen=True)
class Windows:
    """How running text is cut; None: the default."""

    length: int | None = None
    """Tokens per window; default: 1,024, or the model's positions if they are fewer."""
    stride: int | None = None
    """Tokens between the starts of two windows; default: `length`."""
    most: int | None = None
    """Number of windows, from the start of the text; default: all."""


@dataclass(frozen=True)
class Cut:
    """Windows of a text."""

    windows: list[list[int]]
    length: int
    stride: int
    rest: int
    """Tokens after the last window, which do not fill another one."""

    def first_scored(self, number: int) -> int:
        """The first token of a window that is scored: each token once, and none without a token before it."""
        return 1 if number == 0 else max(1, self.length - self.stride)


def cut_text(texts: Sequence[str], tokenizer: Any, windows: Windows, limit: int, name: str) -> Cut:
    """Windows of the joined texts; `limit` is the longest input of the model.

    A last window that is not full is dropped, unless it is the only one.
    """
    length = _checked_length(windows, limit)
    stride = length if windows.stride is None else windows.stride
    if not 1 <= stride <= length:
        raise BadSample(f"the stride is {stride}, but must be between 1 and the window, {length} tokens.")
    wanted = None if windows.most is None else (windows.most - 1) * stride + length
    tokens = _tokens_of(SEPARATOR.join(texts), tokenizer, wanted)
    if len(tokens) < 2:
        raise BadSample(f"{name} is too short: {len(tokens)} tokens, and perplexity needs 2 or more; pass more text.")
    length = min(length, len(tokens))
    starts = range(0, len(tokens) - length + 1, stride)[: windows.most]
    rest = 0 if len(starts) == windows.most else len(tokens) - starts[-1] - length
    return Cut([tokens[start : start + length] for start in starts], length, min(stride, length), rest)


def _checked_length(windows: Windows, limit: int) -> int:
    if windows.length is None:
        return min(WINDOW_TOKENS, limit)
    if not 2 <= windows.length <= limit:
        raise BadSample(f"the window is {windows.length} tokens, but must be between 2 and {limit}, the model's limit.")
    return windows.length


def _tokens_of(text: str, tokenizer: Any, wanted: int | None) -> list[int]:
    """The text's tokens, at least `wanted` of them if there are so many; no more text than needed is read."""
    size = len(text) if wanted is None else CHARACTERS_PER_TOKEN * (wanted + MARGIN)
    while True:
        tokens: list[int] = tokenizer(text[:size], verbose=False)["input_ids"]
        if size >= len(text) or wanted is None:
            return tokens
        if len(tokens) >= wanted + MARGIN:
            return tokens[:-MARGIN]
        size *= 2
