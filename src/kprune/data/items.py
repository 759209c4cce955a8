"""Images and sounds as rows: the files of a folder, or a column of a table; nothing is decoded here."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kprune.data.rows import Item, entries_of, is_missing
from kprune.data.tasks import Test, thin
from kprune.errors import BadSample

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Medium:
    """What a model reads in the place of text."""

    name: str
    suffixes: frozenset[str]
    """Endings of the files that are read from a folder."""
    columns: tuple[str, ...]
    """Usual names of a column with it."""


IMAGES = Medium(
    "images",
    frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")),
    ("image", "img", "pixel_values"),
)
AUDIO = Medium(
    "audio", frozenset((".aif", ".aiff", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav")), ("audio", "speech")
)
MEDIA = {"pixel_values": IMAGES, "input_features": AUDIO, "input_values": AUDIO}
"""What a model reads, by the name of its main input; all others read text."""

Labelled = tuple[Item, Any]


def read_images(
    data: Any, column: str | None = None, label: str | None = None, *, folder_labels: bool = False, name: str = ""
) -> Test:
    """A test of images: a folder, or a list, Dataset or DataFrame of paths, PIL images or arrays.

    Of rows with columns, `column` names the one with the images, `label` the one with the labels. With
    `folder_labels`, the folder's sub-folders are named after the classes.
    """
    return read_media(data, IMAGES, column, label, folder_labels=folder_labels, name=name)


def read_audio(
    data: Any, column: str | None = None, label: str | None = None, *, folder_labels: bool = False, name: str = ""
) -> Test:
    """A test of sounds: a folder, or a list, Dataset or DataFrame of paths or arrays, as for `read_images`.

    An array has the sampling rate of the model; {"array": …, "sampling_rate": …} names its own.
    """
    return read_media(data, AUDIO, column, label, folder_labels=folder_labels, name=name)


def read_media(
    data: Any,
    medium: Medium,
    column: str | None = None,
    label: str | None = None,
    *,
    folder_labels: bool = False,
    name: str = "",
    base: Path | None = None,
    limit: int | None = None,
) -> Test:
    """A test of images or sounds; relative paths in a table begin at the folder `base`."""
    if isinstance(data, Test):
        return data
    name = name or (Path(data).name if isinstance(data, str | os.PathLike) else "the data")
    if isinstance(data, str | os.PathLike):
        if column or label:
            raise BadSample(f"{data} is a folder without columns; leave the column out, or pass a table.")
        found = list(_files(Path(data), medium, folder_labels))
    elif folder_labels:
        raise BadSample(f"{name} is no folder, so that no sub-folder is a label; name the column with the labels.")
    else:
        found = list(_rows(data, medium, column, label, name, base))
    if not found:
        raise BadSample(f"{name} has no {medium.name}; pass a folder or a table that has some.")
    references = [value for _, value in found] if label or folder_labels else None
    return thin(Test(name, None, [(item,) for item, _ in found], references), limit)


def _files(folder: Path, medium: Medium, folder_labels: bool) -> Iterator[Labelled]:
    """The folder's files of the medium, sub-folders included, in the order of their paths."""
    if folder.is_file() and folder.suffix.lower() in medium.suffixes and not folder_labels:
        yield Item(folder), None
        return
    if not folder.is_dir():
        raise BadSample(f"there is no folder {folder}; pass a folder of {medium.name}.")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in medium.suffixes and path.is_file())
    paths = [path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not paths:
        endings = ", ".join(sorted(medium.suffixes))
        raise BadSample(f"{folder} has no {medium.name} ({endings}); pass a folder that has some.")
    for path in paths:
        parts = path.relative_to(folder).parts
        if folder_labels and len(parts) < 2:
            raise BadSample(
                f"{path} is in no sub-folder, so that it has no label; move it to the sub-folder of its class."
            )
        yield Item(path), parts[0]


def _rows(
    data: Any, medium: Medium, column: str | None, label: str | None, name: str, base: Path | None
) -> Iterator[Labelled]:
    """The items of any Python data, with their labels."""
    if hasattr(data, "column_names") and hasattr(data, "features") and hasattr(data, "__len__"):
        yield from _data_set_rows(data, medium, column, label, name)
        return
    is_array = hasattr(data, "ndim") and not hasattr(data, "iloc")  # not a DataFrame or a Series
    empty = 0
    for number, entry in enumerate(data if is_array else entries_of(data, name)):
        value, reference = entry, None
        is_cell = isinstance(entry, Mapping) and ({"bytes", "array"} & set(entry)) and column is None
        if isinstance(entry, Mapping) and not is_cell:
            chosen = column or _default_column(entry, medium, name)
            for wanted in (chosen, *([label] if label else [])):
                if wanted not in entry:
                    raise BadSample(f"row {number} of {name} has no column {wanted!r}; it has {_listed(entry)}.")
            value, reference = entry[chosen], entry[label] if label else None
        elif column or label:
            raise BadSample(f"{name} has rows without columns, and so no column {column or label!r}; pass dicts.")
        if is_missing(value) or (isinstance(value, str) and not value.strip()):
            empty += 1
            continue
        if label and is_missing(reference):
            raise BadSample(f"row {number} of {name} has no {label!r}; fill it in, or remove the row.")
        yield _item(value, f"row {number} of {name}", base), reference
    if empty:
        log.warning("%d rows of %s are empty and are left out", empty, name)


def _data_set_rows(data: Any, medium: Medium, column: str | None, label: str | None, name: str) -> Iterator[Labelled]:
    """The items of a Dataset, each read from it when it is needed."""
    from kprune.data.readers import undecoded

    names = list(data.column_names)
    chosen = column or next((each for each in medium.columns if each in names), None) or _only_media(data, names)
    for wanted in (chosen, *([label] if label else [])):
        if wanted not in names:
            raise BadSample(f"{name} has no column {wanted!r}; name one of {', '.join(names)}.")
    plain = undecoded(data)
    labels = plain.select_columns([label])[label] if label else [None] * len(plain)
    for number, reference in enumerate(labels):
        yield _item(lambda number=number: plain[number][chosen], f"row {number} of {name}", None), reference


def _only_media(data: Any, names: list[str]) -> str | None:
    """The only column with images or sounds, by the types of a data set."""
    found = [name for name in names if type(data.features[name]).__name__ in ("Image", "Audio")]
    return found[0] if len(found) == 1 else None


def _default_column(row: Mapping[str, Any], medium: Medium, name: str) -> str:
    """The column to use where none was named: the usual name, or the only one with the medium."""
    usual = [each for each in medium.columns if each in row]
    found = usual[:1] or [str(each) for each, value in row.items() if _is_media(value, medium)]
    if len(found) != 1:
        raise BadSample(f"{name} has {len(found)} columns with {medium.name}; name one of {_listed(row)}.")
    return found[0]


def _is_media(value: Any, medium: Medium) -> bool:
    if isinstance(value, str):
        return Path(value).suffix.lower() in medium.suffixes
    return isinstance(value, bytes | Mapping) or hasattr(value, "__array_interface__")


def _item(value: Any, place: str, base: Path | None) -> Item:
    """A value as an item: a path by itself, all else by its place."""
    if isinstance(value, str | os.PathLike):
        path = Path(value)
        return Item(base / path if base is not None and (base / path).exists() else path)
    item = Item(place)
    item.content = value if callable(value) else lambda: value
    return item


def _listed(row: Mapping[str, Any]) -> str:
    return ", ".join(map(str, row)) or "none"
