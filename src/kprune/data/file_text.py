"""The text of a file, of a file that gzip compressed, or of standard input."""

from __future__ import annotations

import gzip
import sys
import zlib
from os import PathLike
from pathlib import Path

from kprune.errors import BadSample
from kprune.runtime.distributed import launched_processes

STDIN = "-"
"""The name of standard input in the place of a file."""
COMPRESSED = ".gz"


def is_stdin(path: str | PathLike[str]) -> bool:
    """Whether a path names standard input."""
    return str(path) == STDIN


def name_of(path: str | PathLike[str]) -> str:
    """What reports call a file: its name without its folder."""
    return "standard input" if is_stdin(path) else Path(path).name


def ending_of(path: str | PathLike[str]) -> str:
    """The ending that says what a file holds: `.csv` of `a.csv` and of `a.csv.gz`."""
    path = Path(path)
    return Path(path.stem).suffix if path.suffix == COMPRESSED else path.suffix


def read_text(path: Path) -> str:
    """The text of a file, decompressed if its name ends in `.gz`; `-` is standard input."""
    content = _read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSample(
            f"{path} is not UTF-8 text (byte {error.start} is {content[error.start]:#04x}); convert it to UTF-8 first."
        ) from error
    if "\0" in text:
        raise BadSample(f"{path} is not text (character {text.index(chr(0))} is null); pass a text file.")
    return text


def _read_bytes(path: Path) -> bytes:
    if is_stdin(path):
        return _read_stdin()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadSample(f"cannot read {path}: {error.strerror}; check the path.") from error
    if path.suffix != COMPRESSED:
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise BadSample(f"cannot decompress {path} ({error}); compress it again with gzip.") from error


def _read_stdin() -> bytes:
    """All of standard input, which one process can read once."""
    if launched_processes() > 1:
        raise BadSample("several processes cannot share standard input; write the data to a file.")
    if sys.stdin is None or sys.stdin.isatty():
        raise BadSample("standard input is a terminal; pipe the data into the command, or name a file.")
    content = sys.stdin.buffer.read()
    if not content.strip():
        raise BadSample("standard input is empty, or was read already; name - once, or pass a file.")
    return content
