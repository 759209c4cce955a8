"""Reranking from a user's table: queries, each with passages and their relevance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeGuard

from kprune.data.rows import Row, entries_of
from kprune.errors import BadSample

GROUPED, FLAT = ("query", "passages", "relevance"), ("query", "passage", "relevance")
"""Columns of a table with a row per query, and of one with a row per pair."""
RANKING_METRICS = ("ndcg@10", "mrr@10")


@dataclass(frozen=True)
class Passages:
    """The reference of a query: its passages, and how relevant each of them is."""

    texts: tuple[str, ...]
    relevance: tuple[float, ...]

    @property
    def has_relevant(self) -> bool:
        """Whether a passage is relevant; without one, every order scores 0."""
        return any(relevance > 0 for relevance in self.relevance)


def read_rankings(table: Any, name: str) -> tuple[list[Row], list[Passages]]:
    """The queries in order, each with its passages; raises where a row is incomplete."""
    found: dict[str, list[tuple[str, float]]] = {}
    for number, entry in enumerate(entries_of(table, name)):
        place = f"row {number} of {name}"
        query, pairs = _pairs(entry, place)
        found.setdefault(query, []).extend(pairs)
    references = [Passages(*map(tuple, zip(*pairs, strict=True))) for pairs in found.values()]
    return [(query,) for query in found], references


def _pairs(entry: Any, place: str) -> tuple[str, list[tuple[str, float]]]:
    """The query of a row, and its passages with their relevance; a row may have one passage or a list of them."""
    columns = GROUPED if isinstance(entry, Mapping) and "passages" in entry else FLAT
    missing = [column for column in columns if not isinstance(entry, Mapping) or column not in entry]
    if missing:
        raise BadSample(f"{place} has no column {missing[0]!r}; give every row {', '.join(columns)}.")
    query, texts, values = (entry[column] for column in columns)
    texts, values = ([texts], [values]) if columns is FLAT else (_as_list(texts), _as_list(values))
    if not isinstance(query, str) or not query.strip():
        raise BadSample(f"{place} has the query {query!r:.40}; write a text.")
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise BadSample(f"{place} has the {columns[1]} {entry[columns[1]]!r:.60}; write texts.")
    if len(texts) != len(values):
        raise BadSample(f"{place} has {len(texts)} passages and {len(values)} relevances; give one for each passage.")
    return query, list(zip(texts, (_relevance(value, place) for value in values), strict=True))


def _as_list(value: Any) -> list[Any]:
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, list | tuple) else [value]


def _relevance(value: Any, place: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < float("inf"):
        raise BadSample(f"{place} has the relevance {value!r:.40}; write a number, 0 for an irrelevant passage.")
    return number


def rows_of_rankings(rows: Sequence[Row], references: Sequence[Passages], *, in_pairs: bool) -> list[Row]:
    """What a model reads: pairs of query and passage, or all queries and passages one by one."""
    if in_pairs:
        return [(query, text) for (query,), passages in zip(rows, references, strict=True) for text in passages.texts]
    return [*rows, *((text,) for text in chain.from_iterable(passages.texts for passages in references))]


def are_rankings(references: Sequence[Any] | None) -> TypeGuard[Sequence[Passages]]:
    """Whether the references of a test are passages of queries."""
    return bool(references) and isinstance((references or (None,))[0], Passages)


def require_relevant(references: Sequence[Any] | None, name: str) -> None:
    """Raise if a test ranks passages of which none is relevant."""
    if are_rankings(references) and not any(each.has_relevant for each in references):
        raise BadSample(f"{name} has no query with a relevant passage (relevance above 0); correct the relevance.")


def with_prompted_passages(references: Sequence[Passages], prompt: str) -> list[Passages]:
    """The references with a prompt before every passage."""
    return [replace(each, texts=tuple(prompt + text for text in each.texts)) for each in references]
