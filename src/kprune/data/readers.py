"""Files, tables and data sets to rows of text, with labels where a column has them."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from kprune.data.file_text import COMPRESSED, ending_of, is_stdin, read_text
from kprune.data.rows import Line, Row, Table, as_rows
from kprune.errors import BadSample

LONGEST_COLUMN_NAME = 5
"""Words above which the name of a column is probably a text."""
DELIMITERS = ",;\t|"
"""What other programs write between cells."""

log = logging.getLogger(__name__)


def read_lines(path: str | Path) -> list[Row]:
    """The lines of a text file that are not blank, one row each; `-` is standard input, and `.gz` is decompressed."""
    if ending_of(_path(path)) in READERS:
        raise BadSample(f"{path} is a table by its ending, not a file of lines; read it with --data or read_rows.")
    return [(line.strip(),) for line in read_text(_path(path)).splitlines() if line.strip()]


def read_rows(
    source: str | Path, columns: Sequence[str] = (), *, subset: str | None = None, split: str = "train"
) -> list[Row]:
    """The texts of a table: a JSONL, CSV, TSV or Parquet file by its extension, else a Hugging Face data set.

    `columns` names one or two columns. Without names, the table must have exactly one text column, or the columns
    `question` and `context`.
    """
    return as_rows(read_table(source, subset=subset, split=split), columns, source=str(source))


def read_table(
    source: str | Path, *, subset: str | None = None, split: str = "train", file: str | None = None
) -> Table:
    """The rows of a JSONL, CSV, TSV or Parquet file by its extension, else of a Hugging Face data set's split.

    All but Parquet may be compressed (`.csv.gz`). `-` is standard input, in JSON lines.
    `file` is the only file of a data set that is read.
    """
    path = _path(source)
    if is_stdin(path):
        return list(_read_jsonl(path))
    ending = ending_of(path)
    if path.is_file():
        if ending not in READERS:
            raise BadSample(f"{source} ends in none of {', '.join(READERS)}; for a file of plain lines use --text.")
        return READERS[ending](path)
    if ending in READERS:
        raise BadSample(f"there is no file {source}; check the path.")
    return _read_data_set(str(source), subset, split, file)


def is_table_file(path: str | PathLike[str]) -> bool:
    """Whether a path names a table by its ending, or standard input."""
    return is_stdin(path) or ending_of(path) in READERS


def table_files(path: Path) -> list[Path]:
    """The path itself if it is a file, or else the table files in the folder, sub-folders not included."""
    return [path] if path.is_file() else sorted(file for file in path.glob("*") if ending_of(file) in READERS)


def half_of(rows: Sequence[Any], split: str, splits: tuple[str, str]) -> Sequence[Any]:
    """The first or the second half of a table, as if they were two splits."""
    if split not in splits:
        raise BadSample(f"the table has no split {split!r}; use {' or '.join(splits)}, its two halves.")
    middle = len(rows) // 2
    return rows[:middle] if split == splits[0] else rows[middle:]


def _path(source: Any) -> Path:
    if not isinstance(source, str | PathLike):
        raise BadSample(f"a reader takes a path, not a {type(source).__name__}; pass data in memory to kprune.draw.")
    if "\0" in str(source):
        raise BadSample(f"there is no file {str(source)!r}; check the path.")
    return Path(source)


def _read_jsonl(path: Path) -> Iterator[Mapping[str, Any]]:
    # Not splitlines(): a JSON string may contain other line separators.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise BadSample(f"{path}, line {number}, is not JSON ({error}); write one object per line.") from error
            if not isinstance(row, dict):
                raise BadSample(f"{path}, line {number}, is not a JSON object; write one object per line.")
            found = Line(row)
            found.line = number
            yield found


def _delimited_reader(delimiter: str, quoting: Literal[0, 3]) -> Callable[[Path], Table]:
    def read(path: Path) -> Table:
        csv.field_size_limit(2**31 - 1)
        reader = csv.DictReader(io.StringIO(read_text(path), newline=""), delimiter=delimiter, quoting=quoting)
        rows = []
        try:
            _check_header(path, reader.fieldnames or (), delimiter)
            for row in reader:
                if None in row:  # DictReader's key for cells beyond the header
                    raise BadSample(
                        f"{path}, line {reader.line_num}, has more cells than the header has columns; "
                        f"put texts that contain {delimiter!r} in quotes, or use JSONL."
                    )
                if None in row.values():
                    raise BadSample(
                        f"{path}, line {reader.line_num}, has fewer cells than the header has columns; add the missing "
                        "cells, or use JSONL if a text contains a line break."
                    )
                rows.append(row)
        except csv.Error as error:
            raise BadSample(
                f"{path} is not a table with {delimiter!r} between cells ({error}); correct the file."
            ) from error
        if quoting == csv.QUOTE_NONE and any(map(_is_quoted, chain.from_iterable(row.values() for row in rows))):
            log.warning("cells of %s are in quotes, which are read as text; write CSV if they are not part of it", path)
        return rows

    return read


def _is_quoted(cell: str) -> bool:
    """Whether a cell is in quotes, with the quotes inside doubled, as a writer of CSV does it."""
    return len(cell) > 2 and cell[0] == cell[-1] == '"' and '""' in cell[1:-1]


def _check_header(path: Path, header: Sequence[str], delimiter: str) -> None:
    """Raise if columns have one name or another delimiter; log a warning if the header looks like a row of data."""
    if len(header) == 1 and any(other in header[0] for other in DELIMITERS):
        raise BadSample(
            f"{path} has the only column {header[0]!r:.60}; put {delimiter!r} between its cells, or use JSONL."
        )
    repeated = [name for number, name in enumerate(header) if name in header[:number]]
    if repeated:
        raise BadSample(f"{path} has two columns {repeated[0]!r}; rename one of them in the first line.")
    data = [name for name in header if len(name.split()) > LONGEST_COLUMN_NAME or _is_number(name)]
    if data:
        log.warning(
            "the first line of %s is read as column names, such as %.60r; add names if it has none", path, data[0]
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_parquet(path: Path) -> Table:
    if path.suffix == COMPRESSED:
        raise BadSample(f"{path} is Parquet, which is compressed inside; decompress the file with gunzip first.")
    _require_datasets()
    import pyarrow
    from pyarrow import parquet

    try:
        rows: Table = parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise BadSample(
            f"cannot read {path} as Parquet: {str(error).splitlines()[0]}; write the file again, or pass another."
        ) from error
    return rows


READERS: dict[str, Callable[[Path], Table]] = {
    ".jsonl": _read_jsonl,
    ".csv": _delimited_reader(",", csv.QUOTE_MINIMAL),
    ".tsv": _delimited_reader("\t", csv.QUOTE_NONE),
    ".parquet": _read_parquet,
}


def _read_data_set(name: str, subset: str | None, split: str, file: str | None = None) -> Table:
    _require_datasets()
    import datasets

    is_folder = Path(name).is_dir()
    which: dict[str, Any] = {"name": subset} if file is None else {"data_files": {split: file}}
    try:
        if not is_folder:
            table: Table = undecoded(datasets.load_dataset(name, split=split, **which))
        else:
            # Streaming bypasses the cache, which confuses two folders of the same name.
            table = list(undecoded(datasets.load_dataset(name, split=split, streaming=True, **which)))
    except Exception as error:
        # datasets raises any exception of its readers and of the network.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadSample(
            f"cannot load the data set {name!r} (subset {subset!r}, split {split!r}): {reason}"
            + ("" if is_folder else " Pass a folder or a file where there is no network.")
        ) from error
    return table


def undecoded(table: Any) -> Any:
    """A Dataset whose images and sounds are read as bytes and paths: kprune decodes those that it needs."""
    for name, feature in (table.features or {}).items():
        if type(feature).__name__ in ("Image", "Audio"):
            table = table.cast_column(name, type(feature)(decode=False))
    return table


def _require_datasets() -> None:
    try:
        import datasets  # noqa: F401
    except ImportError as error:
        raise BadSample("Parquet files and data sets need the extra: pip install 'kprune[data]'.") from error
