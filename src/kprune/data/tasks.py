"""Tests for models: benchmarks as rows of a table, and tests from the user's own data."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import Any

from kprune.data.announced import announced_by
from kprune.data.file_text import name_of
from kprune.data.rankings import are_rankings, with_prompted_passages
from kprune.data.readers import half_of, read_lines, read_table, table_files
from kprune.data.rows import QUESTION_AND_CONTEXT, Item, Row, Table, labelled_rows, row_of, texts_and_labels
from kprune.data.windows import Windows
from kprune.errors import BadSample, KpruneError
from kprune.models.outputs import CAUSAL_LM, CLASSIFICATION, MASKED_LM, QUESTION_ANSWERING, REGRESSION

EMBEDDING = "embedding"
LANGUAGE = "language model"
"""Kind of a task for causal and for masked language models: its rows are running text."""


@dataclass(frozen=True)
class Task:
    """A benchmark: the source of its data, the meaning of its columns, and its metrics."""

    name: str
    source: str
    """The data set's name on the hub; a local copy's folder has the last part as its name."""
    subset: str
    kind: str
    """The kind of model that the task is for: the name of an output kind."""
    texts: tuple[str, ...]
    label: str | None
    metrics: tuple[str, ...]
    """The main metric first."""
    labels: tuple[str, ...] = ()
    """Class names, in the data's order."""
    length: float | None = None
    """Mean tokens per input with which K-prune's authors count FLOPs; None where they report none."""
    train: str = "train"
    validation: str = "validation"
    may_be_empty: bool = False
    """Whether a question may have no answer."""
    most_windows: int | None = None
    """Windows of running text that are scored unless a limit is given; None: all."""
    files: tuple[tuple[str, str], ...] = ()
    """Per split, the only file that is read: the whole split is too large."""


GLUE, SQUAD, SQUAD_2, WIKITEXT = "nyu-mll/glue", "rajpurkar/squad", "rajpurkar/squad_v2", "Salesforce/wikitext"
PAIR = ("sentence1", "sentence2")
NLI = ("entailment", "neutral", "contradiction")
ACCURACY, SPEARMAN, ANSWERS = ("accuracy",), ("spearman", "pearson"), ("answer-f1", "exact-match")
CLASSES, VALUE, SPANS = CLASSIFICATION.name, REGRESSION.name, QUESTION_ANSWERING.name

MNLI = Task(
    "mnli",
    GLUE,
    "mnli",
    CLASSES,
    ("premise", "hypothesis"),
    "label",
    ACCURACY,
    NLI,
    39.05,
    validation="validation_matched",
)

TASKS = {
    task.name: task
    for task in (
        Task("mrpc", GLUE, "mrpc", CLASSES, PAIR, "label", ("accuracy", "f1"), ("not_equivalent", "equivalent"), 53.24),
        Task(
            "qqp",
            GLUE,
            "qqp",
            CLASSES,
            ("question1", "question2"),
            "label",
            ("accuracy", "f1"),
            ("not_duplicate", "duplicate"),
            30.55,
        ),
        Task("sst2", GLUE, "sst2", CLASSES, ("sentence",), "label", ACCURACY, ("negative", "positive"), 25.16),
        Task("stsb", GLUE, "stsb", VALUE, PAIR, "label", SPEARMAN, length=31.47),
        Task("stsb-cosine", GLUE, "stsb", EMBEDDING, PAIR, "label", SPEARMAN, length=31.47),
        MNLI,
        replace(MNLI, name="mnli-mismatched", validation="validation_mismatched"),
        Task(
            "qnli",
            GLUE,
            "qnli",
            CLASSES,
            ("question", "sentence"),
            "label",
            ACCURACY,
            ("entailment", "not_entailment"),
            50.97,
        ),
        Task("rte", GLUE, "rte", CLASSES, PAIR, "label", ACCURACY, ("entailment", "not_entailment")),
        Task(
            "cola",
            GLUE,
            "cola",
            CLASSES,
            ("sentence",),
            "label",
            ("matthews", "accuracy"),
            ("unacceptable", "acceptable"),
        ),
        Task("squad", SQUAD, "plain_text", SPANS, QUESTION_AND_CONTEXT, "answers", ANSWERS, length=170.0),
        Task(
            "squad2",
            SQUAD_2,
            "squad_v2",
            SPANS,
            QUESTION_AND_CONTEXT,
            "answers",
            ANSWERS,
            length=170.0,
            may_be_empty=True,
        ),
        Task("wikitext2", WIKITEXT, "wikitext-2-raw-v1", LANGUAGE, ("text",), None, ("perplexity",), validation="test"),
        Task(
            "c4",
            "allenai/c4",
            "en",
            LANGUAGE,
            ("text",),
            None,
            ("perplexity",),
            most_windows=256,
            files=(
                ("train", "en/c4-train.00000-of-01024.json.gz"),
                ("validation", "en/c4-validation.00000-of-00008.json.gz"),
            ),
        ),
    )
}


@dataclass(frozen=True)
class Test:
    """Rows of text, or of one image or sound each, with references (right answers) where they are known."""

    __test__ = False  # pytest must not collect this class

    name: str
    kind: str | None
    """The kind of model that the test is for; None: any."""
    rows: Sequence[Row]
    references: Sequence[Any] | None
    """Right answers: class numbers or names, values, or lists of answers; None: unknown."""
    metrics: tuple[str, ...] = ()
    """Metric names; empty: the default for the model."""
    labels: tuple[str, ...] = ()
    """Names of the classes 0, 1, … of the references; empty: unknown."""
    may_be_empty: bool = False
    """Whether a question may have no answer; an empty reference implies it too."""
    windows: Windows = field(default_factory=Windows)
    """How the rows are cut for a causal language model; `most` also limits a masked language model's blocks."""

    def __post_init__(self) -> None:
        if not (isinstance(self.rows, list) and all(map(_is_row, self.rows)) and len(set(map(len, self.rows))) < 2):
            object.__setattr__(self, "rows", _complete_rows(self.rows, self.name))
        if isinstance(self.metrics, str):
            object.__setattr__(self, "metrics", (self.metrics,))
        if self.references is not None and len(self.references) != len(self.rows):
            raise BadSample(
                f"{self.name} has {len(self.rows)} rows and {len(self.references)} references; give one for each row."
            )


def _is_row(row: Any) -> bool:
    return type(row) is tuple and len(row) in (1, 2) and all(type(text) in (str, Item) for text in row)


def _complete_rows(data: Any, name: str) -> list[Row]:
    """The data as rows; none may be missing, because references are matched by number."""
    rows = []
    for number, (texts, _) in enumerate(texts_and_labels(data, (), None, name)):
        if not texts or None in texts:
            raise BadSample(f"row {number} of {name} has no text; remove the row, or read the data with read_test.")
        rows.append(tuple(str(text) for text in texts))
    return rows


def task_named(name: str) -> Task:
    """The task with this name."""
    if name not in TASKS:
        raise KpruneError(f"there is no task {name!r}; use one of {', '.join(TASKS)}, or your own --data.")
    return TASKS[name]


def load_task(name: str, *, data: str | Path | None = None, split: str | None = None, limit: int | None = None) -> Test:
    """A benchmark's validation split, from the hub, or from a folder that contains the data sets' folders."""
    task = task_named(name)
    table = task_table(task, split or task.validation, data)
    if task.kind == LANGUAGE:
        test = thin(_running_text(table, task), limit or task.most_windows)
    else:
        test = read_test(table, task.texts, task.label, name=name, limit=limit)
    return replace(test, kind=task.kind, metrics=task.metrics, labels=task.labels, may_be_empty=task.may_be_empty)


def _running_text(table: Table, task: Task) -> Test:
    """The rows of a task in order and as they are, blank ones included: they are lines of the text."""
    found = (texts for texts, _ in texts_and_labels(table, task.texts, None, task.name))
    rows = [row_of(texts) or (texts[0] or "",) for texts in found]
    return Test(task.name, task.kind, rows, None)


def suits(kind: str | None, model_kind: str) -> bool:
    """Whether a test for one kind of model, or for any, can be given to a model of another."""
    return kind in (None, model_kind) or (kind == LANGUAGE and model_kind in (MASKED_LM.name, CAUSAL_LM.name))


def task_table(task: Task, split: str, data: str | Path | None) -> Table:
    """A split of a task's data; `data` is the data set's folder or its parent; None: the hub.

    Language tasks also read a table file, or a folder of them: the first half of the rows is the training split.
    """
    plain = _table_files(task, data)
    if plain:
        return half_of(list(chain.from_iterable(map(read_table, plain))), split, (task.train, task.validation))
    try:
        location, file = _location(task, data), dict(task.files).get(split)
        if data is not None and not (file and Path(location, file).is_file()):
            file = None
        return read_table(location, subset=task.subset, split=split, file=file)
    except BadSample as error:
        if data is not None:
            raise
        name = task.source.split("/")[-1]
        raise BadSample(f"{error} Without the hub, point --data at a folder that holds {name!r}.") from error


def _table_files(task: Task, data: str | Path | None) -> list[Path]:
    """The table files of a language task, outside of the hub's layout."""
    if data is None or task.kind != LANGUAGE:
        return []
    inside = Path(data) / task.source.split("/")[-1]
    return table_files(inside if inside.is_dir() else Path(data))


def _location(task: Task, data: str | Path | None) -> str:
    if data is None:
        return task.source
    folder, name = Path(data), task.source.split("/")[-1]
    if not folder.is_dir():
        raise BadSample(f"there is no folder {data}; pass the folder that holds {name}.")
    if folder.resolve().name == name:  # checked first: a data set may contain a subset with its own name
        return str(folder)
    if not (folder / name).is_dir():
        raise BadSample(
            f"{data} holds no folder {name!r} with the data of the task {task.name}; pass that folder's parent."
        )
    return str(folder / name)


def read_test(
    table: Any,
    texts: Sequence[str] = (),
    label: str | None = None,
    *,
    metrics: tuple[str, ...] = (),
    name: str = "the data",
    limit: int | None = None,
) -> Test:
    """A test from a table's columns, with at most `limit` rows; rows with an empty text are skipped.

    The table is any data that `kprune.draw` takes: a list of dicts, a Dataset, a DataFrame. If no column is named, its
    columns may announce a test of choices, of reranking or of named entities (`data/announced.py`).
    """
    if not texts and label is None:
        table, announced = announced_by(table)
        if announced is not None:
            return thin(Test(name, announced.kind, *announced.read(table, name), metrics or announced.metrics), limit)
    pairs = list(labelled_rows(table, texts, label, name))
    if not pairs:
        raise BadSample(f"{name} has no rows with text; pass a split or a file that has some.")
    references = [reference for _, reference in pairs] if label else None
    return thin(Test(name, None, [row for row, _ in pairs], references, metrics), limit)


def with_prompt(test: Test, prompt: str) -> Test:
    """The test with a prompt before every text."""
    if not prompt:
        return test
    references = test.references
    if are_rankings(references):
        references = with_prompted_passages(references, prompt)
    return replace(test, rows=[tuple(prompt + text for text in row) for row in test.rows], references=references)


def thin(test: Test, limit: int | None) -> Test:
    """The test with at most `limit` rows, evenly spaced; of a language task, with its first `limit` windows."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, Integral) or limit < 1):
        raise BadSample(f"limit is {limit!r}; pass 1 or more, or None for all rows.")
    if test.kind == LANGUAGE:
        return test if limit is None else replace(test, windows=replace(test.windows, most=int(limit)))
    if limit is None or limit >= len(test.rows):
        return test
    return _select(test, [number * len(test.rows) // limit for number in range(limit)])


def hold_out(test: Test, *, seed: int, share: float = 0.1, most: int = 2000) -> tuple[Test, Test]:
    """The test split in two: rows for the sample, and held-out rows (`share` of the distinct rows, at most `most`)."""
    distinct = sorted(set(test.rows))  # a repeated row must not be on both sides
    count = min(most, round(share * len(distinct)))
    if count < 1:
        raise BadSample(
            f"{test.name} has {len(distinct)} different rows, too few to hold any out for a test; add rows, or name "
            "a test with --validation."
        )
    held_out = set(random.Random(f"held out {seed}").sample(distinct, count))
    is_held_out = [row in held_out for row in test.rows]
    sampled = [number for number, held in enumerate(is_held_out) if not held]
    tested = [number for number, held in enumerate(is_held_out) if held]
    return _select(test, sampled), _select(test, tested)


def _select(test: Test, numbers: Sequence[int]) -> Test:
    """The rows of the test with these numbers."""
    references = None if test.references is None else [test.references[number] for number in numbers]
    return replace(test, rows=[test.rows[number] for number in numbers], references=references)


def join(tests: Sequence[Test]) -> Test:
    """Tests of one kind as one, in order."""
    if len(tests) == 1:
        return tests[0]
    name = ", ".join(test.name for test in tests)
    rows = [row for test in tests for row in test.rows]
    references = [reference for test in tests for reference in test.references or ()]
    return replace(tests[0], name=name, rows=rows, references=references if tests[0].references is not None else None)


def text_test(path: str | Path, *, limit: int | None = None) -> Test:
    """A test without references, from the lines of a text file."""
    rows = read_lines(path)
    if not rows:
        raise BadSample(f"{path} has no lines with text; pass a file that has some.")
    return thin(Test(name_of(path), None, rows, None), limit)
