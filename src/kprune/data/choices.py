"""Multiple choice from a user's table: a context, its choices, and the right one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kprune.data.rows import Row
from kprune.errors import BadSample

COLUMNS = ("context", "choices", "answer")
CHOICE_METRICS = ("accuracy", "accuracy-norm")


@dataclass(frozen=True)
class Choices:
    """The reference of a row: its choices, and the number of the right one."""

    texts: tuple[str, ...]
    answer: int


def read_choices(table: Any, name: str) -> tuple[list[Row], list[Choices]]:
    """The contexts and choices of all rows; raises where a row is incomplete."""
    entries = table.to_dict("records") if hasattr(table, "iloc") else table
    contexts: list[Row] = []
    choices: list[Choices] = []
    for number, entry in enumerate(entries):
        place = f"row {number} of {name}"
        missing = [column for column in COLUMNS if not isinstance(entry, Mapping) or column not in entry]
        if missing:
            raise BadSample(f"{place} has no column {missing[0]!r}; give every row {', '.join(COLUMNS)}.")
        if not isinstance(entry["context"], str):
            raise BadSample(f"{place} has the context {entry['context']!r:.40}; write a text, which may be empty.")
        contexts.append((entry["context"],))
        choices.append(_choices(entry["choices"], entry["answer"], place))
    return contexts, choices


def _choices(given: Any, answer: Any, place: str) -> Choices:
    texts = given.tolist() if hasattr(given, "tolist") else given
    is_list = isinstance(texts, list | tuple) and all(isinstance(text, str) and text.strip() for text in texts)
    if not is_list or len(texts) < 2:
        raise BadSample(f"{place} has the choices {given!r:.60}; write a list of two texts or more.")
    if isinstance(answer, str) and answer in texts:
        return Choices(tuple(texts), texts.index(answer))
    try:
        number = float(answer)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(answer, bool) or number not in range(len(texts)):
        raise BadSample(
            f"{place} has the answer {answer!r:.40}; write the right choice, or its number from 0 to {len(texts) - 1}."
        )
    return Choices(tuple(texts), int(number))
