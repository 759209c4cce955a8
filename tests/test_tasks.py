import json
from pathlib import Path

import pytest

from kprune import KpruneError, load_task, read_test
from kprune.data import read_table
from kprune.exams import EXAMS
from kprune.metrics import METRICS
from kprune.outputs import CLASSIFICATION
from kprune.tasks import TASKS, Task, hold_out, task_table, text_test


def example(task: Task, number: int) -> dict[str, object]:
    """A row as the task's data have it."""
    row: dict[str, object] = {column: f"The {column} of row {number} is here." for column in task.texts}
    if task.kind == CLASSIFICATION.name:
        row["label"] = number % len(task.labels)
    elif task.label == "label":
        row["label"] = number % 6 / 1.2
    elif task.label == "answers":
        row["answers"] = {"text": [f"row {number}", "here"][: 1 + number % 2], "answer_start": [0, 1][: 1 + number % 2]}
    return row


def write_data(root: Path, task: Task, rows: int = 12) -> Path:
    """A task's data in a folder laid out as on the hub."""
    folder = root / task.source.split("/")[-1]
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["---", "configs:", f"- config_name: {task.subset}", "  data_files:"]
    for split in dict.fromkeys((task.train, task.validation)):
        (folder / task.subset).mkdir(exist_ok=True)
        content = "\n".join(json.dumps(example(task, number)) for number in range(rows))
        (folder / task.subset / f"{split}.jsonl").write_text(content)
        lines += [f"  - split: {split}", f"    path: {task.subset}/{split}.jsonl"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    return root


@pytest.mark.parametrize("name", TASKS)
def test_rows_name_what_exists(name):
    task = TASKS[name]
    assert set(task.metrics) <= set(METRICS)
    assert set(task.metrics) <= set(EXAMS[task.kind].metrics or ("answer-f1", "exact-match"))
    assert bool(task.labels) == (task.kind == CLASSIFICATION.name)
    assert len(task.texts) in (1, 2)


@pytest.mark.parametrize("name", ["sst2", "mnli-mismatched", "stsb", "squad2", "wikitext2"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_task_is_read_from_a_folder(name, inside, tmp_path):
    task = TASKS[name]
    root = write_data(tmp_path, task)
    test = load_task(name, data=root / task.source.split("/")[-1] if inside else root, limit=4)
    spread = (0, 3, 6, 9)  # of twelve rows
    assert test.rows == [tuple(example(task, number)[column] for column in task.texts) for number in spread]
    expected = None if task.label is None else [example(task, number)[task.label] for number in spread]
    assert test.references == expected
    assert (test.kind, test.metrics) == (task.kind, task.metrics)
    assert len(list(task_table(task, task.train, root))) == 12


def test_two_folders_of_one_name_are_two(tmp_path):
    for number, rows in enumerate((12, 20)):
        root = write_data(tmp_path / str(number), TASKS["sst2"], rows)
        assert len(load_task("sst2", data=root).rows) == rows


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("imdb", {}, "there is no task 'imdb'; there are mrpc, qqp, sst2"),
        ("sst2", {"data": "/nowhere"}, "there is no folder /nowhere; pass the one that holds glue"),
        ("sst2", {"split": "exam"}, "cannot load the data set .*split 'exam'"),
        ("squad", {}, "holds no folder 'squad'"),
    ],
)
def test_what_cannot_be_loaded_is_told_in_a_sentence(name, options, message, tmp_path):
    write_data(tmp_path, TASKS["sst2"])
    with pytest.raises(KpruneError, match=message):
        load_task(name, **{"data": tmp_path, **options})


def test_without_a_network_a_folder_is_asked_for():
    with pytest.raises(KpruneError, match=r"cannot load the data set 'nyu-mll/glue'.*point --data at a folder"):
        load_task("sst2")


def test_a_test_of_ones_own(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("a,b,y\nred,rot,1\nblue,,0\ngreen,grün,0\n")
    test = read_test(read_table(str(path)), ("a", "b"), "y", metrics=("f1",), name="mine.csv")
    assert test.rows == [("red", "rot"), ("green", "grün")]
    assert test.references == ["1", "0"]
    assert read_test(read_table(str(path)), ("a",)).references is None


@pytest.mark.parametrize(
    ("columns", "label", "message"),
    [
        (("c",), "y", "mine has no column 'c'; it has a, b, y"),
        (("a",), "z", "mine has no column 'z'"),
        ((), "y", "mine has 2 text columns .a, b.; name one or two"),
    ],
)
def test_columns_that_are_not_there(columns, label, message, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("a,b,y\nred,rot,1\nblue,blau,\n")
    with pytest.raises(KpruneError, match=message):
        read_test(read_table(str(path)), columns, label, name="mine")


def test_no_rows_are_no_test(tmp_path):
    (tmp_path / "none.csv").write_text("a,y\n")
    with pytest.raises(KpruneError, match="none has no rows with text"):
        read_test(read_table(str(tmp_path / "none.csv")), ("a",), "y", name="none")
    (tmp_path / "none.txt").write_text("\n \n")
    with pytest.raises(KpruneError, match=r"none.txt has no lines with text"):
        text_test(tmp_path / "none.txt")


def test_questions_and_contexts_are_known_by_their_names(tmp_path):
    (tmp_path / "qa.jsonl").write_text(json.dumps({"id": "1", "title": "t", "question": "q?", "context": "c."}))
    assert read_test(read_table(str(tmp_path / "qa.jsonl"))).rows == [("q?", "c.")]


def test_what_is_held_out_is_not_sampled():
    rows = [{"text": f"row {number}", "y": number} for number in range(95)]
    whole = read_test(rows, ("text",), "y")
    sampled, test = hold_out(whole, seed=3)
    assert len(test.rows) == 10
    assert sorted([*sampled.rows, *test.rows]) == sorted(whole.rows)
    assert [f"row {reference}" for reference in test.references] == [text for (text,) in test.rows]
    assert hold_out(whole, seed=3)[1].rows == test.rows
    assert hold_out(whole, seed=4)[1].rows != test.rows
    assert len(hold_out(whole, seed=3, most=4)[1].rows) == 4
    twice = read_test([*rows, *rows], ("text",), "y")
    sampled, test = hold_out(twice, seed=0)
    assert not set(sampled.rows) & set(test.rows)
    with pytest.raises(KpruneError, match="too few to hold any out"):
        hold_out(read_test(rows[:3], ("text",)), seed=0)
