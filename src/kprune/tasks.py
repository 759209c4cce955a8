"""What a model is tested on: benchmarks as rows of a table, and tests made of a user's own data."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kprune.data import QUESTION_AND_CONTEXT, Row, Table, labelled_rows, read_lines, read_table
from kprune.errors import BadSample, KpruneError
from kprune.outputs import (
    CLASSIFICATION,
    MASKED_LM,
    QUESTION_ANSWERING,
    REGRESSION,
)

EMBEDDING = "embedding"


@dataclass(frozen=True)
class Task:
    """A benchmark: where its data are, what its columns mean, and how it is scored."""

    name: str
    source: str
    """The data set's name on the hub; its last part is the name of its folder elsewhere."""
    subset: str
    kind: str
    """The kind of model that it is for."""
    texts: tuple[str, ...]
    label: str | None
    metrics: tuple[str, ...]
    """The one that counts, then others."""
    labels: tuple[str, ...] = ()
    """What the classes are called, in the data's order."""
    length: float | None = None
    """Mean tokens of an input, where K-prune's authors say with which they count FLOPs."""
    train: str = "train"
    validation: str = "validation"
    may_be_empty: bool = False
    """Whether a question may have no answer."""


GLUE, SQUAD, SQUAD_2, WIKITEXT = "nyu-mll/glue", "rajpurkar/squad", "rajpurkar/squad_v2", "Salesforce/wikitext"
PAIR = ("sentence1", "sentence2")
NLI = ("entailment", "neutral", "contradiction")
ACCURACY, SPEARMAN, ANSWERS = ("accuracy",), ("spearman", "pearson"), ("answer-f1", "exact-match")
CLASSES, VALUE, SPANS, MASKED = CLASSIFICATION.name, REGRESSION.name, QUESTION_ANSWERING.name, MASKED_LM.name

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
        Task("wikitext2", WIKITEXT, "wikitext-2-raw-v1", MASKED, ("text",), None, ("perplexity",), validation="test"),
    )
}


@dataclass(frozen=True)
class Test:
    """Rows of text with what is known of their right answers, ready for a model of one kind."""

    __test__ = False  # not one of pytest's

    name: str
    kind: str | None
    """The kind of model that it is for; None: any."""
    rows: Sequence[Row]
    references: Sequence[Any] | None
    """Right answers: classes or their names, values, lists of answers; None: not known."""
    metrics: tuple[str, ...] = ()
    """Names; none: what suits the model."""
    labels: tuple[str, ...] = ()
    """What the classes 0, 1, … of the references are called, where that is known."""
    may_be_empty: bool = False
    """Whether a question may have no answer; it may, too, where a reference says so."""


def task_named(name: str) -> Task:
    """The row of a task."""
    if name not in TASKS:
        raise KpruneError(f"there is no task {name!r}; there are {', '.join(TASKS)}. Or use your own --data.")
    return TASKS[name]


def load_task(name: str, *, data: str | Path | None = None, split: str | None = None, limit: int | None = None) -> Test:
    """A benchmark's validation split, from the hub or from a folder that holds the data sets' folders."""
    task = task_named(name)
    table = task_table(task, split or task.validation, data)
    test = read_test(table, task.texts, task.label, name=name, limit=limit)
    return replace(test, kind=task.kind, metrics=task.metrics, labels=task.labels, may_be_empty=task.may_be_empty)


def task_table(task: Task, split: str, data: str | Path | None) -> Table:
    """A split of a task's data; `data` is a folder with the data sets' folders in it, or the set's own."""
    try:
        return read_table(_place(task, data), subset=task.subset, split=split)
    except BadSample as error:
        if data is not None:
            raise
        name = task.source.split("/")[-1]
        raise BadSample(f"{error} Without the hub, point --data at a folder that holds {name!r}.") from error


def _place(task: Task, data: str | Path | None) -> str:
    if data is None:
        return task.source
    folder, name = Path(data), task.source.split("/")[-1]
    if not folder.is_dir():
        raise BadSample(f"there is no folder {data}; pass the one that holds {name}.")
    if folder.resolve().name == name:  # it may hold a subset of its own name
        return str(folder)
    if not (folder / name).is_dir():
        raise BadSample(f"{data} holds no folder {name!r}, where the task {task.name} has its data; pass its parent.")
    return str(folder / name)


def read_test(
    table: Table,
    texts: Sequence[str] = (),
    label: str | None = None,
    *,
    metrics: tuple[str, ...] = (),
    name: str = "the data",
    limit: int | None = None,
) -> Test:
    """A test made of a table's columns, at most `limit` rows of it; rows without text are left out."""
    found = list(labelled_rows(table, texts, label, name))
    if not found:
        raise BadSample(f"{name} has no rows with text; pass a split or a file that has some.")
    rows = [row for row, _ in found]
    return thin(Test(name, None, rows, [answer for _, answer in found] if label else None, metrics), limit)


def thin(test: Test, limit: int | None) -> Test:
    """At most `limit` rows of a test, evenly spread over it: the same ones each time."""
    if limit is None or limit >= len(test.rows):
        return test
    return _pick(test, [number * len(test.rows) // limit for number in range(limit)])


def hold_out(test: Test, *, seed: int, share: float = 0.1, most: int = 2000) -> tuple[Test, Test]:
    """Rows for the sample, and a test of the others: `share` of the texts, drawn by seed, at most `most`."""
    texts = sorted(set(test.rows))  # a text that occurs twice is on one side only
    held = min(most, round(share * len(texts)))
    if held < 1:
        raise BadSample(
            f"{test.name} has {len(texts)} different rows, too few to hold any out for a test; add rows, or name "
            "a test with --validation."
        )
    chosen = set(random.Random(f"held out {seed}").sample(texts, held))
    out = [number for number, row in enumerate(test.rows) if row in chosen]
    rest = [number for number, row in enumerate(test.rows) if row not in chosen]
    return _pick(test, rest), _pick(test, out)


def _pick(test: Test, numbers: Sequence[int]) -> Test:
    references = None if test.references is None else [test.references[number] for number in numbers]
    return replace(test, rows=[test.rows[number] for number in numbers], references=references)


def text_test(path: str | Path, *, limit: int | None = None) -> Test:
    """A test without answers, of a text file's lines."""
    rows = read_lines(path)
    if not rows:
        raise BadSample(f"{path} has no lines with text; pass a file that has some.")
    return thin(Test(Path(path).name, None, rows, None), limit)
