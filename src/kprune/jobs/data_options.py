"""Which data a job reads: the calibration sample, and the test that shares no row with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from kprune.data import readers
from kprune.data.tasks import Test, hold_out, load_task, read_test, task_named, task_table, text_test
from kprune.errors import BadOptions, KpruneError

DEFAULT_TOKENS = 100_000
MOST_HELD_OUT = 2000


@dataclass(frozen=True)
class DataOptions:
    """Where texts and labels come from: exactly one of a text file, a table or data set, and a task."""

    text: Path | None = None
    """Text file, one example per line."""
    task: str | None = None
    table: str | None = None
    """JSONL, CSV, TSV or Parquet file, or a data set; with a task, the folder of the data sets' folders."""
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

    def require_one_source(self) -> None:
        """Raise if the options name no data, two sources, or what a task already defines."""
        chosen = [name for name in ("text", "task", "table") if getattr(self, name) is not None]
        if chosen not in (["text"], ["task"], ["table"], ["task", "table"]):
            raise BadOptions("pass the data with one of --text, --data and --task (and --data for its folder).")
        if self.task and (self.columns or self.label or self.metrics or self.subset):
            raise BadOptions("a --task defines its columns, labels, metrics and subset; leave those options out.")
        if self.text is not None and (self.columns or self.label or self.metrics):
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
            return load_task(self.task, data=self.table, split=split, limit=self.limit)
        if split is not None and Path(split).is_file():
            is_table = Path(split).suffix in readers.READERS
            other = replace(self, table=split if is_table else None, text=None if is_table else Path(split))
            return other._table(None, limit=self.limit)
        return self._table(split or (None if self._is_file else "validation"), limit=self.limit)

    def _task_sample_and_test(self, name: str, wants_test: bool) -> tuple[Test, Test | None]:
        task = task_named(name)
        sampled, tested = self.split or task.train, self.validation or task.validation
        if wants_test and sampled == tested:
            raise BadOptions(f"{sampled!r} is sampled and cannot also be the test; name another split.")
        table = task_table(task, sampled, self.table)
        sample = replace(read_test(table, task.texts, task.label, name=task.name), labels=task.labels)
        return sample, self.test(tested) if wants_test else None

    @property
    def _is_file(self) -> bool:
        return self.table is None or Path(self.table).suffix in readers.READERS

    def _table(self, split: str | None, *, limit: int | None = None) -> Test:
        """The rows of the text file or table, with labels if a column is named."""
        if split is not None and self._is_file:
            name = self.text or self.table
            raise KpruneError(f"{name} is a file without a split {split!r}; name a file or leave the split out.")
        if self.text is not None:
            return text_test(self.text, limit=limit)
        assert self.table is not None
        return read_test(
            readers.read_table(self.table, subset=self.subset, split=split or "train"),
            self.columns,
            self.label,
            metrics=self.metrics,
            name=Path(self.table).name,
            limit=limit,
        )
