"""Which data a job reads: the calibration sample, and the test that shares no row with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kprune.config import DEFAULT_TOKENS
from kprune.data import readers
from kprune.data.tasks import Test, hold_out, join, load_task, read_test, task_named, task_table, text_test, thin
from kprune.errors import BadOptions, KpruneError

MOST_HELD_OUT = 2000


@dataclass(frozen=True)
class DataOptions:
    """Where texts and labels come from: exactly one of text files, table files or a data set, and a task."""

    text: str | Path | Sequence[Path] | None = None
    """Text files, one example per line; several are read in order."""
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
        given = {"text": self.texts, "task": self.task, "table": self.tables}
        chosen = [name for name, value in given.items() if value]
        if chosen not in (["text"], ["task"], ["table"], ["task", "table"]):
            raise BadOptions("pass the data with one of --text, --data and --task (and --data for its folder).")
        if self.task and (self.columns or self.label or self.metrics or self.subset):
            raise BadOptions("a --task defines its columns, labels, metrics and subset; leave those options out.")
        others = [table for table in self.tables if Path(table).suffix not in readers.READERS]
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
        if self.task:
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
        if self.task:
            return load_task(self.task, data=self._folder, split=split, limit=self.limit)
        if split is not None and Path(split).is_file():
            is_table = Path(split).suffix in readers.READERS
            other = replace(self, table=split if is_table else None, text=None if is_table else Path(split))
            return other._table(None, limit=self.limit)
        return self._table(split or (None if self._is_file else "validation"), limit=self.limit)

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
    def _is_file(self) -> bool:
        return all(Path(table).suffix in readers.READERS for table in self.tables)

    def _table(self, split: str | None, *, limit: int | None = None) -> Test:
        """The rows of the text files or tables, with labels if a column is named."""
        if split is not None and self._is_file:
            name = (*self.texts, *self.tables)[0]
            raise KpruneError(f"{name} is a file without a split {split!r}; name a file or leave the split out.")
        tests = [text_test(path) for path in self.texts]
        tests += [
            read_test(
                readers.read_table(table, subset=self.subset, split=split or "train"),
                self.columns,
                self.label,
                metrics=self.metrics,
                name=Path(table).name,
            )
            for table in self.tables
        ]
        return thin(join(tests), limit)
