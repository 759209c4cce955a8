"""Examples on which two models answer differently: what is kept of them, and the base of the logs that find them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kprune.data.labels import class_names
from kprune.data.tasks import Test
from kprune.models.outputs import Prediction

MOST_CHARACTERS = 400
"""Of a text or an answer that is kept."""


@dataclass(frozen=True)
class Change:
    """An example, and both models' answers to it."""

    text: tuple[str, ...]
    before: str
    """The second model's answer: the dense one's."""
    after: str
    """The first model's answer."""
    before_confidence: float | None
    """Probability of the answer; of an embedder, the cosine of text and answer by the second model."""
    after_confidence: float | None
    reference: str | None = None
    """The right answer, where the test has one."""


@dataclass(frozen=True)
class Changes:
    """The examples that two models answer differently; of values, those that differ most."""

    what: str
    """What an answer is: an answer, a value, a nearest text, a next token or a masked token."""
    compared: int
    changed: int
    examples: tuple[Change, ...]
    """The clearest changes first; no more than were asked for."""


class ChangeLog:
    """Collects both models' answers, batch by batch; this base class knows no answers."""

    def __init__(self, test: Test, config: Any, examples: Sequence[Any], tokenizer: Any) -> None:
        self.test, self.examples, self.tokenizer = test, examples, tokenizer
        self.config, self.names = config, class_names(config)

    def add(self, ours: Prediction, theirs: Prediction) -> None:
        """Keep both models' predictions for a batch."""

    def changes(self, most: int, answers: Sequence[Any]) -> Changes | None:
        """The changed examples, at most so many; None where answers cannot be shown."""
        return None

    def _text(self, number: int) -> tuple[str, ...]:
        return tuple(shortened(part, number) for part in self.test.rows[number])

    def _reference(self, number: int) -> str | None:
        references = self.test.references
        if references is None:
            return None
        value = references[number]
        is_number = isinstance(value, int | np.integer) and not isinstance(value, bool)
        names = self.test.labels or self.names
        return names[int(value)] if is_number and 0 <= int(value) < len(names) else shortened(str(value), number)


def shortened(value: Any, number: int) -> str:
    """A text, cut to what a page shows; images and sounds are named by their number."""
    is_written = isinstance(value, str | int | float | list | dict)  # not an image or a sound
    text = str(value) if is_written else value.name if isinstance(value, Path) else f"example {number}"
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 2].rsplit(" ", 1)[0] + " …"
