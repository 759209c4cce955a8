"""Which data a job reads: the calibration sample, and the test that shares no row with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kprune.config import DEFAULT_TOKENS
from kprune.data import readers
from kprune.data.file_text import name_of
from kprune.data.items import Medium, read_media
from kprune.data.tasks import Test, hold_out, join, load_task, read_test, task_named, task_table, text_test, thin
from kprune.errors import BadOptions, KpruneError

MOST_HELD_OUT = 2000

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataOptions:
    """Where inputs and labels come from: one of text files, a folder of images or sounds, tables, and a task."""

    text: str | Path | Sequence[Path] | None = None
    """Text files, one example per line; several are read in order."""
    images: str | Path | None = None
    """Folder of images, sub-folders included."""
    audio: str | Path | None = None
    """Folder of sounds, sub-folders included."""
    folder_labels: bool = False
    """Whether the sub-folders of `images` or `audio` are named after the classes."""
    task: str | None = None
    table: str | Sequence[str] | None = None
    """JSONL, CSV, TSV or Parquet files, or a data set; with a task, the folder of the data sets' folders."""
    columns: tuple[str, ...] = ()
    label: str | None = None
    metrics: tuple[str, ...] = ()
    subset: str | None = None
    split: str | None = None
    validation: str | None = None
    """File, or split, of the test."""
    limit: int | None = None
    """Rows of the test."""
    max_length: int | None = None
    tokens: int = DEFAULT_TOKENS
    """Real tokens of the sample."""
    window: int | None = None
    """Tokens per window of the test, for a causal language model."""
    stride: int | None = None
    """Tokens between the starts of two windows."""
    medium: Medium | None = None
    """What the model reads; None: text."""

    @property
    def texts(self) -> tuple[Path, ...]:
        """The text files."""
        if self.text is None or isinstance(self.text, str | Path):
            return () if self.text is None else (Path(self.text),)
        return tuple(self.text)

    @property
    def tables(self) -> tuple[str, ...]:
        """The table files, or the only data set or folder."""
        if self.table is None or isinstance(self.table, str):
            return () if self.table is None else (self.table,)
        return tuple(self.table)

    def require_one_source(self) -> None:
        """Raise if the options name no data, two sources, or what a task already defines."""
        given: dict[str, object] = {"images": self.images, "audio": self.audio}
        given |= {"text": self.texts, "task": self.task, "table": self.tables}
        chosen = [name for name, value in given.items() if value]
        if len(chosen) != 1 and chosen != ["task", "table"]:
            raise BadOptions(
                "pass the data with one of --text, --data and --task (and --data for its folder), or with --images or "
                "--audio."
            )
        if self.folder_labels and not self._media_folder:
            raise BadOptions("--folder-labels belongs to a folder of --images or --audio; leave it out.")
        if self._media_folder and (self.columns or self.label or self.subset):
            raise BadOptions(
                "a folder of --images or --audio has no columns and no subset; use --folder-labels, or --data for a "
                "table."
            )
        if self.task and (self.columns or self.label or self.metrics or self.subset):
            raise BadOptions("a --task defines its columns, labels, metrics and subset; leave those options out.")
        others = [table for table in self.tables if not readers.is_table_file(table)]
        if len(self.tables) > 1 and (others or self.task):
            raise BadOptions(
                f"several --data are read in order if all are files, but {(*others, self.tables[0])[0]} is none; "
                "pass it alone."
            )
        if self.texts and (self.columns or self.label or self.metrics):
            raise BadOptions("a --text file has no columns and no labels; use --data for a table.")

    def sample_and_test(self, *, wants_test: bool, seed: int) -> tuple[Test, Test | None]:
        """The rows to sample from, and the test, which shares no row with them."""
        self.require_one_source()
        if not wants_test and (self.validation or self.metrics or self.limit):
            raise BadOptions("--validation, --metric and --limit belong to a test; add --evaluate.")
        if self.task and not self.medium:
            return self._task_sample_and_test(self.task, wants_test)
        split = self.split or (None if self._is_file else "train")
        whole = self._table(split)
        if not wants_test:
            return whole, None
        if self.validation is None:
            return hold_out(whole, seed=seed, most=self.limit or MOST_HELD_OUT)
        if self.validation == split:
            raise BadOptions(f"{split!r} is sampled and cannot also be the test; name another split.")
        return whole, self.test(self.validation)

    def test(self, split: str | None) -> Test:
        """The test: a task's, a file's, or a split's."""
        if self.task and not self.medium:
            return load_task(self.task, data=self._folder, split=split, limit=self.limit)
        other = self
        if split is not None and (Path(split).is_file() or (self._media_folder and Path(split).is_dir())):
            other, split = self._at(Path(split)), None
        elif split is None and not self._is_file:
            split = "validation"
        whole = other._table(split)
        limit = self.limit or (MOST_HELD_OUT if self.medium else None)
        if limit and not self.limit and len(whole.rows) > limit:
            log.warning(
                "%d of %d rows of %s are tested; --limit changes the number", limit, len(whole.rows), whole.name
            )
        return thin(whole, limit)

    def _at(self, path: Path) -> DataOptions:
        """The same options for another file or folder."""
        if path.is_dir():
            return replace(self, images=self.images and path, audio=self.audio and path)
        is_table = readers.is_table_file(path)
        return replace(self, table=str(path) if is_table else None, text=None if is_table else path)

    def with_windows(self, test: Test) -> Test:
        """The test with the windows that the options name."""
        return replace(test, windows=replace(test.windows, length=self.window, stride=self.stride))

    def _task_sample_and_test(self, name: str, wants_test: bool) -> tuple[Test, Test | None]:
        task = task_named(name)
        sampled, tested = self.split or task.train, self.validation or task.validation
        if wants_test and sampled == tested:
            raise BadOptions(f"{sampled!r} is sampled and cannot also be the test; name another split.")
        table = task_table(task, sampled, self._folder)
        sample = replace(read_test(table, task.texts, task.label, name=task.name), labels=task.labels)
        return sample, self.test(tested) if wants_test else None

    @property
    def _folder(self) -> str | None:
        """With a task, the folder of its data."""
        return self.tables[0] if self.tables else None

    @property
    def _media_folder(self) -> str | Path | None:
        """The folder of images or sounds."""
        return self.images or self.audio

    @property
    def _is_file(self) -> bool:
        return all(map(readers.is_table_file, self.tables))

    def _table(self, split: str | None) -> Test:
        """The rows of the text files or tables, with labels if a column is named."""
        if split is not None and self._is_file:
            name = (*self.texts, *self.tables, self._media_folder)[0]
            raise KpruneError(f"{name} is a file without a split {split!r}; name a file or leave the split out.")
        if self.medium or self._media_folder:
            return self._media(split)
        tests = [text_test(path) for path in self.texts]
        tests += [
            read_test(
                readers.read_table(table, subset=self.subset, split=split or "train"),
                self.columns,
                self.label,
                metrics=self.metrics,
                name=name_of(table),
            )
            for table in self.tables
        ]
        for test in tests:
            log.info("%s has %d rows", test.name, len(test.rows))
        return join(tests)

    def _media(self, split: str | None) -> Test:
        """The images or sounds of the folder or of the tables, with labels if they are named."""
        medium = self._require_medium()
        if len(self.columns) > 1:
            raise BadOptions(f"{len(self.columns)} columns were named; name the one with the {medium.name}.")
        if self._media_folder:
            test = read_media(self._media_folder, medium, folder_labels=self.folder_labels)
        else:
            test = join([self._media_table(table, medium, split) for table in self.tables])
        return replace(test, metrics=self.metrics)

    def _media_table(self, table: str, medium: Medium, split: str | None) -> Test:
        rows = readers.read_table(table, subset=self.subset, split=split or "train")
        column = self.columns[0] if self.columns else None
        folder = Path(table).parent if Path(table).is_file() else None
        return read_media(rows, medium, column, self.label, name=name_of(table), base=folder)

    def _require_medium(self) -> Medium:
        """What the model reads; raises if the options name something else."""
        given = "images" if self.images else "audio" if self.audio else "text" if self.texts else None
        given = "task" if self.task else given
        expected = "text" if self.medium is None else self.medium.name
        if self.medium is None or given not in (None, expected):
            raise BadOptions(f"the model reads {expected}, not what --{given} names; use --{expected}, or --data.")
        return self.medium
