"""Tests that a table announces by its columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kprune.data.choices import CHOICE_METRICS, COLUMNS, read_choices
from kprune.data.rankings import FLAT, GROUPED, RANKING_METRICS, read_rankings
from kprune.data.rows import with_columns
from kprune.data.tagging import ENTITY_METRICS, NUMBERED_TAGS, TAGS, WORDS, read_tags
from kprune.models.outputs import CAUSAL_LM, TOKEN_CLASSIFICATION


@dataclass(frozen=True)
class Announced:
    """A kind of test, by the columns of its table."""

    columns: tuple[str, ...]
    kind: str | None
    """The kind of model that it is for; None: several."""
    read: Callable[[Any, str], tuple[list[Any], list[Any]]]
    """Rows and references of a table with a name."""
    metrics: tuple[str, ...]


ANNOUNCED = (
    Announced(COLUMNS, CAUSAL_LM.name, read_choices, CHOICE_METRICS),
    Announced(GROUPED, None, read_rankings, RANKING_METRICS),
    Announced(FLAT, None, read_rankings, RANKING_METRICS),
    Announced((WORDS, TAGS), TOKEN_CLASSIFICATION.name, read_tags, ENTITY_METRICS),
    Announced((WORDS, NUMBERED_TAGS), TOKEN_CLASSIFICATION.name, read_tags, ENTITY_METRICS),
)


def announced_by(table: Any) -> tuple[Any, Announced | None]:
    """The table, and the kind of test that the columns of its first row announce; an iterator is kept."""
    table, names = with_columns(table)
    return table, next((each for each in ANNOUNCED if set(each.columns) <= names), None)
