"""Raw text in, tokenised batches out: files and data sets, drawn by seed until enough tokens are there."""

from __future__ import annotations

import csv
import io
import json
import logging
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from kprune.errors import BadSample
from kprune.families import positions_of

log = logging.getLogger(__name__)

Row = tuple[str, ...]
"""One text, or a pair."""
Table = Iterable[Mapping[str, Any]]

CHUNK = 64
"""Texts that are tokenised together."""
MASKED_SHARE = 0.15
"""Tokens that a masked language model is asked for."""


def read_lines(path: str | Path) -> list[Row]:
    """The lines of a text file that are not blank, a text each."""
    return [(line.strip(),) for line in _text_of(Path(path)).splitlines() if line.strip()]


def read_rows(
    source: str, columns: Sequence[str] = (), *, subset: str | None = None, split: str = "train"
) -> list[Row]:
    """The texts in a table: JSONL, CSV, TSV or Parquet by the file's ending, else a Hugging Face data set.

    `columns` names one column or two; left out, the table must make plain which it is.
    """
    return [row for row, _ in labelled_rows(read_table(source, subset=subset, split=split), columns, None, source)]


def read_table(source: str, *, subset: str | None = None, split: str = "train") -> Table:
    """The rows of a JSONL, CSV, TSV or Parquet file by its ending, else of a Hugging Face data set's split."""
    path = Path(source)
    if path.is_file():
        if path.suffix not in READERS:
            raise BadSample(f"{source} ends in none of {', '.join(READERS)}; for a file of plain lines use --text.")
        return READERS[path.suffix](path)
    if path.suffix in READERS:
        raise BadSample(f"there is no file {source}; check the path.")
    return _data_set(source, subset, split)


def draw(
    rows: Sequence[Row],
    tokenizer: Any,
    *,
    tokens: int,
    max_length: int,
    seed: int = 0,
    masked: bool = False,
    labels: Sequence[float] | None = None,
) -> list[dict[str, Tensor]]:
    """Tokenised batches of rows drawn without replacement, until they hold `tokens` real tokens.

    With `masked`, tokens are masked for a masked language model, and `labels` mark where. `labels`, a number per row,
    come along for methods that want them.
    """
    if tokens < 1:
        raise BadSample(f"{tokens} tokens were asked for; ask for 1 or more (100,000 are usual).")
    generator = torch.Generator().manual_seed(seed)
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    batches: list[dict[str, Tensor]] = []
    missing = tokens
    for start in range(0, len(order), CHUNK):
        chunk = order[start : start + CHUNK]
        encoded = tokenizer(
            *(list(column) for column in zip(*(rows[number] for number in chunk), strict=True)),
            truncation=True,
            max_length=max_length,
            padding=True,
            return_tensors="pt",
        )
        lengths = encoded["attention_mask"].sum(1)
        wanted = int((lengths.cumsum(0) - lengths < missing).sum())
        batch = {name: value[:wanted] for name, value in encoded.items()}
        if labels is not None:
            batch["labels"] = torch.tensor([labels[number] for number in chunk[:wanted]])
        batches.append(_mask_some(batch, tokenizer, generator) if masked else batch)
        missing -= int(lengths[:wanted].sum())
        if missing <= 0:
            return batches
    if not batches:
        raise BadSample("the sample has no text in it; pass a file or data set with some.")
    log.warning("the data hold %d tokens, fewer than the %d asked for: all of them are used", tokens - missing, tokens)
    return batches


def longest_input(tokenizer: Any, config: PreTrainedConfig) -> int:
    """The most tokens that a model takes, by its positions and its tokenizer."""
    return min(positions_of(config), int(tokenizer.model_max_length))


def python_documentation() -> list[str]:
    """Paragraphs of prose from Python's language reference, in an order that is always the same.

    Every installation carries them for `help()`: real text where a user has given none.
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


def _mask_some(batch: dict[str, Tensor], tokenizer: Any, generator: torch.Generator) -> dict[str, Tensor]:
    ids = batch["input_ids"]
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    chosen = (torch.rand(ids.shape, generator=generator) < MASKED_SHARE) & ~special
    return {
        **batch,
        "input_ids": ids.masked_fill(chosen, tokenizer.mask_token_id),
        "labels": ids.masked_fill(~chosen, -100),
    }


def _text_of(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadSample(f"cannot read {path}: {error.strerror}; check the path.") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSample(
            f"{path} is not UTF-8 text (byte {error.start} is {content[error.start]:#04x}); convert it to UTF-8 first."
        ) from error
    if "\0" in text:
        raise BadSample(f"{path} is not text (it has a null at {text.index(chr(0))}); pass a text file.")
    return text


def _json_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(_text_of(path).split("\n"), start=1):  # a string may hold other line breaks
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise BadSample(f"{path}, line {number}, is not JSON ({error}); write one object per line.") from error
            if not isinstance(row, dict):
                raise BadSample(f"{path}, line {number}, is not a JSON object; write one object per line.")
            yield row


def _separated(delimiter: str, quoting: Literal[0, 3]) -> Callable[[Path], Table]:
    def read(path: Path) -> Table:
        csv.field_size_limit(2**31 - 1)
        try:
            return list(csv.DictReader(io.StringIO(_text_of(path), newline=""), delimiter=delimiter, quoting=quoting))
        except csv.Error as error:
            raise BadSample(f"{path} is not a table with {delimiter!r} between cells: {error}.") from error

    return read


def _parquet(path: Path) -> Table:
    _require_datasets()
    import pyarrow
    from pyarrow import parquet

    try:
        rows: Table = parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise BadSample(f"cannot read {path} as Parquet: {str(error).splitlines()[0]}") from error
    return rows


READERS: dict[str, Callable[[Path], Table]] = {
    ".jsonl": _json_lines,
    ".csv": _separated(",", csv.QUOTE_MINIMAL),
    ".tsv": _separated("\t", csv.QUOTE_NONE),
    ".parquet": _parquet,
}


def _data_set(name: str, subset: str | None, split: str) -> Table:
    _require_datasets()
    import datasets

    try:
        if not Path(name).is_dir():
            table: Table = datasets.load_dataset(name, subset, split=split)
        else:
            # Streamed, past the cache: it takes two folders of one name for the same, and gives the first one's rows.
            table = list(datasets.load_dataset(name, subset, split=split, streaming=True))
    except Exception as error:
        # datasets raises whatever its readers and the network do
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadSample(
            f"cannot load the data set {name!r} (subset {subset!r}, split {split!r}): {reason}"
            + ("" if Path(name).is_dir() else " Pass a folder or a file where there is no network.")
        ) from error
    return table


def _require_datasets() -> None:
    try:
        import datasets  # noqa: F401
    except ImportError as error:
        raise BadSample("Parquet files and data sets need the extra: pip install 'kprune[data]'.") from error


QUESTION_AND_CONTEXT = ("question", "context")


def labelled_rows(table: Table, columns: Sequence[str], label: str | None, source: str) -> Iterator[tuple[Row, Any]]:
    """The texts in a table's columns, and what is in the column `label`; rows without text are left out."""
    chosen = tuple(columns)
    if len(chosen) > 2:
        raise BadSample(f"{len(chosen)} columns were named ({', '.join(chosen)}); name one, or two for pairs.")
    for number, row in enumerate(table):
        wanted = (*chosen, *([label] if label else []))
        missing = [column for column in wanted if column not in row]
        if missing:
            raise BadSample(f"{source} has no column {missing[0]!r}; it has {', '.join(map(str, row))}.")
        chosen = chosen or _only_text_columns(row, label, source)
        texts = tuple(row[column] for column in chosen)
        for column, text in zip(chosen, texts, strict=True):
            if text is not None and not isinstance(text, str):
                raise BadSample(f"column {column!r} of {source} holds {text!r:.40}, not text; name a text column.")
        if all(text and text.strip() for text in texts):
            if label is not None and row[label] is None:
                raise BadSample(f"row {number} of {source} has no {label!r}; fill it in, or leave the row out.")
            yield tuple(map(_encodable, texts)), row[label] if label else None


def _encodable(text: str) -> str:
    """A text without halves of characters, which JSON can hold and a tokenizer cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _only_text_columns(row: Mapping[str, Any], label: str | None, source: str) -> tuple[str, ...]:
    texts = tuple(name for name, value in row.items() if isinstance(value, str) and name != label)
    if set(QUESTION_AND_CONTEXT) <= set(texts):
        return QUESTION_AND_CONTEXT
    if len(texts) != 1:
        raise BadSample(
            f"{source} has {len(texts)} text columns ({', '.join(texts) or 'none'}); name one or two of them."
        )
    return texts
