"""Named entities from a user's table: the words of a text, and the tag of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kprune.data.rows import Row, entries_of
from kprune.errors import BadSample

WORDS, TAGS, NUMBERED_TAGS = "tokens", "tags", "ner_tags"
"""Columns of a table; tags have one of two names."""
ENTITY_METRICS = ("entity-f1", "entity-precision", "entity-recall")


@dataclass(frozen=True)
class TaggedWords:
    """The reference of a row: its words, and their tags by name or by the number of the model's class."""

    words: tuple[str, ...]
    tags: tuple[str | int, ...]


def read_tags(table: Any, name: str) -> tuple[list[Row], list[TaggedWords]]:
    """The texts, whose words are joined with spaces, and their tags; rows without words are left out."""
    rows: list[Row] = []
    references: list[TaggedWords] = []
    for number, entry in enumerate(entries_of(table, name)):
        tagged = _tagged(entry, f"row {number} of {name}")
        if tagged.words:
            rows.append((" ".join(tagged.words),))
            references.append(tagged)
    if not rows:
        raise BadSample(f"{name} has no rows with words; pass a split or a file that has some.")
    return rows, references


def _tagged(entry: Any, place: str) -> TaggedWords:
    column = TAGS if isinstance(entry, Mapping) and TAGS in entry else NUMBERED_TAGS
    missing = [each for each in (WORDS, column) if not isinstance(entry, Mapping) or each not in entry]
    if missing:
        raise BadSample(f"{place} has no column {missing[0]!r}; give every row {WORDS} and {TAGS}.")
    words, tags = (value.tolist() if hasattr(value, "tolist") else value for value in (entry[WORDS], entry[column]))
    if not isinstance(words, list | tuple) or not all(
        isinstance(word, str) and word.split() == [word] for word in words
    ):
        raise BadSample(f"{place} has the tokens {words!r:.60}; write a list of words without spaces.")
    is_sound = isinstance(tags, list | tuple) and all(type(tag) in (str, int) for tag in tags)
    if not is_sound or len(tags) != len(words):
        raise BadSample(f"{place} has the tags {tags!r:.60} for {len(words)} tokens; write one tag for each token.")
    return TaggedWords(tuple(words), tuple(tags))
