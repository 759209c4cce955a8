"""Rows of text from any Python data: lists, data sets, data frames, series and iterators; others are refused."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from kprune.errors import BadSample

Row = tuple[str, ...]
"""One text, a pair of texts, or one `Item`."""
Table = Iterable[Mapping[str, Any]]
Texts = tuple[str | None, ...]
"""The texts of a row as they were given; None: missing; empty: the row has none."""

QUESTION_AND_CONTEXT = ("question", "context")
REMEDY = "pass a list of texts, of pairs or of dicts, a Dataset, a DataFrame, a Series or an iterator"

log = logging.getLogger(__name__)


class Line(dict[str, Any]):
    """A row of a table, and the line of the file that it is in."""

    line: int = 0


class Item(str):
    """An image or a sound in a row: the path of its file, or its place in the data."""

    content: Callable[[], Any] | None = None
    """Returns what is not in a file of its own: bytes, an image, an array."""


def as_rows(data: Any, columns: Sequence[str] = (), *, source: str = "the data") -> list[Row]:
    """The rows with text of a list, a Dataset, a DataFrame, a Series or an iterator.

    Rows are texts, pairs of texts, or dicts. Of dicts, `columns` names one or two columns; without names, they must
    have exactly one text column, or the columns `question` and `context`.
    """
    return [row for row, _ in labelled_rows(data, columns, None, source)]


def labelled_rows(data: Any, columns: Sequence[str], label: str | None, source: str) -> Iterator[tuple[Row, Any]]:
    """The rows of `as_rows` with the value in the column `label`; rows with an empty text are skipped."""
    rows = blank = 0
    for texts, value in texts_and_labels(data, columns, label, source):
        row = row_of(texts)
        rows, blank = rows + 1, blank + (row is None)
        if row is not None:
            yield row, value
    if label is not None:
        warn_of_blank_rows(blank, rows, source)


def warn_of_blank_rows(blank: int, rows: int, source: str) -> None:
    """Log how many rows with a label have no text: scores are of the others."""
    if blank:
        log.warning("%d of %d rows of %s have no text and are left out", blank, rows, source)


def row_of(texts: Texts) -> Row | None:
    """The texts as a row, or None if one is missing or blank."""
    present = [text for text in texts if text is not None and text.strip()]
    return tuple(map(_replace_lone_surrogates, present)) if texts and len(present) == len(texts) else None


def texts_and_labels(data: Any, columns: Sequence[str], label: str | None, source: str) -> Iterator[tuple[Texts, Any]]:
    """The texts and the label of every row, blank ones included."""
    named = (columns,) if isinstance(columns, str) else tuple(columns or ())
    if len(named) > 2:
        raise BadSample(f"{len(named)} columns were named ({', '.join(map(str, named))}); name one, or two for pairs.")
    chosen: tuple[str, ...] = named
    first: tuple[bool, int] | None = None
    for number, entry in enumerate(entries_of(data, source)):
        is_mapping, value = isinstance(entry, Mapping), None
        if is_mapping:
            if not named:
                chosen = _default_columns(entry, label, chosen, _place(entry, number, source))
            texts, value = _cells(entry, chosen, label, number, source)
        elif named or label:
            raise BadSample(
                f"{_place(entry, number, source)} has the type {type(entry).__name__}, without a column "
                f"{(*named, label)[0]!r}; pass rows that have it, such as dicts."
            )
        else:
            texts = _plain_texts(entry, number, source)
        if texts and first not in (None, (is_mapping, len(texts))):
            raise BadSample(
                f"row {number} of {source}, {entry!r:.40}, is not like those before it; make all rows alike."
            )
        first = (is_mapping, len(texts)) if texts else first
        yield texts, value


def entries_of(data: Any, source: str) -> Iterable[Any]:
    """The rows of the data, as they are."""
    # Types of pandas and datasets are recognised by what they have: neither must be imported for that.
    if isinstance(data, Mapping) and data and all(hasattr(part, "column_names") for part in data.values()):
        raise BadSample(f"{source} has the splits {', '.join(map(str, data))}; pass one of them.")
    if not isinstance(data, Mapping | str | bytes | bytearray | io.IOBase):
        if hasattr(data, "to_dict") and hasattr(data, "iloc") and hasattr(data, "columns"):
            names = list(data.columns)
            repeated = [name for number, name in enumerate(names) if name in names[:number]]
            if repeated:
                raise BadSample(f"{source} has two columns {repeated[0]!r}; rename one of them.")
            rows: list[Any] = data.to_dict("records")
            return rows
        values = data.tolist() if hasattr(data, "tolist") else data
        is_data_set = hasattr(values, "features") and hasattr(values, "column_names")
        if isinstance(values, Sequence | Iterator) and not isinstance(values, str | bytes):
            return values
        if is_data_set and isinstance(values, Iterable):
            return values
    raise BadSample(f"{source} has the type {type(data).__name__}; {REMEDY}, or read a file with kprune.read_lines.")


def with_columns(table: Any) -> tuple[Any, set[str]]:
    """The table, and the columns of its first row; an iterator is kept."""
    if hasattr(table, "iloc") and hasattr(table, "to_dict"):  # a DataFrame, whose cells may be arrays
        return table, set(getattr(table, "columns", ()))
    if not isinstance(table, Iterable) or isinstance(table, str | bytes | Mapping):
        return table, set()
    rows = iter(table)
    first = next(rows, None)
    columns = set(first) if isinstance(first, Mapping) else set()
    if not isinstance(table, Iterator):
        return table, columns
    return (rows if first is None else chain([first], rows)), columns


def _plain_texts(entry: Any, number: int, source: str) -> Texts:
    """The texts of a row that is a text or a pair."""
    if is_missing(entry):
        return ()
    texts = (entry,) if isinstance(entry, str) else entry
    if not isinstance(texts, list | tuple):
        raise BadSample(f"row {number} of {source} has the type {type(entry).__name__}; {REMEDY}.")
    if len(texts) not in (1, 2):
        raise BadSample(f"row {number} of {source} has {len(texts)} texts; pass one, or two for a pair.")
    for text in texts:
        if not (isinstance(text, str) or is_missing(text)):
            raise BadSample(
                f"row {number} of {source} holds {text!r:.40} ({type(text).__name__}), not text; leave it out."
            )
    return tuple(text if isinstance(text, str) else None for text in texts)


def _cells(
    row: Mapping[str, Any], columns: tuple[str, ...], label: str | None, number: int, source: str
) -> tuple[Texts, Any]:
    """The texts and the label of a row with columns."""
    place = _place(row, number, source)
    missing = [column for column in (*columns, *([label] if label else [])) if column not in row]
    if missing:
        raise BadSample(f"{place} has no column {missing[0]!r}; it has {', '.join(map(str, row)) or 'none'}.")
    texts = tuple(None if is_missing(row[column]) else row[column] for column in columns)
    for column, text in zip(columns, texts, strict=True):
        if text is not None and not isinstance(text, str):
            raise BadSample(f"column {column!r} of {place} holds {text!r:.40}, not text; name a text column.")
    if label is None:
        return texts, None
    if row_of(texts) is not None and is_missing(row[label]):
        where = place if isinstance(row, Line) else f"row {number} of {source}"
        raise BadSample(f"{where} has no {label!r}; fill it in, or remove the row.")
    return texts, row[label]


def _default_columns(row: Mapping[str, Any], label: str | None, chosen: tuple[str, ...], place: str) -> tuple[str, ...]:
    """The text columns to use where none were named; `chosen` are those of the rows before."""
    texts = tuple(name for name, value in row.items() if isinstance(value, str) and name != label)
    if chosen == QUESTION_AND_CONTEXT or set(QUESTION_AND_CONTEXT) <= set(texts):
        return QUESTION_AND_CONTEXT
    if chosen and set(texts) <= set(chosen):
        return chosen
    if not texts and any(is_missing(value) for value in row.values()):
        return ()  # the text is missing here; a later row tells its column
    found = (*chosen, *(name for name in texts if name not in chosen))
    if len(found) != 1:
        raise BadSample(
            f"{place} has {len(found)} text columns ({', '.join(map(str, found)) or 'none'}); name one or two of them."
        )
    return found


def _place(row: Any, number: int, source: str) -> str:
    """Where a row is, for a message; a fault of the first row is most often the whole table's."""
    if isinstance(row, Line):
        return f"line {row.line} of {source}"
    return f"row {number} of {source}" if number else source


def is_missing(value: Any) -> bool:
    """Whether a value is None, or NaN or NA, which pandas has for it."""
    return value is None or (isinstance(value, float) and value != value) or type(value).__name__ == "NAType"


def _replace_lone_surrogates(text: str) -> str:
    """The text with lone surrogates replaced: JSON can hold them, but tokenizers raise on them."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
