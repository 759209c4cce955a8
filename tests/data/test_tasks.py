import gzip
import json

import datasets
import pytest
from task_data import example, write_data

from kprune import KpruneError, Test, load_task, read_test
from kprune.data.readers import read_table
from kprune.data.tasks import LANGUAGE, TASKS, hold_out, task_table, text_test
from kprune.evaluation.metrics import METRICS
from kprune.evaluation.scorers import SCORERS, MaskedTokenScorer
from kprune.models.outputs import CLASSIFICATION


@pytest.mark.parametrize("name", TASKS)
def test_every_task_names_existing_metrics_and_columns(name):
    task = TASKS[name]
    assert set(task.metrics) <= set(METRICS)
    scorer = MaskedTokenScorer if task.kind == LANGUAGE else SCORERS[task.kind]
    assert set(task.metrics) <= set(scorer.metrics or ("answer-f1", "exact-match"))
    assert bool(task.labels) == (task.kind == CLASSIFICATION.name)
    assert len(task.texts) in (1, 2)


@pytest.mark.parametrize("name", ["sst2", "mnli-mismatched", "stsb", "squad2"])
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


@pytest.mark.parametrize("name", ["wikitext2", "c4"])
def test_a_language_task_keeps_all_rows_in_order_and_limits_windows(name, tmp_path):
    task = TASKS[name]
    root = write_data(tmp_path, task)
    test, whole = load_task(name, data=root, limit=4), load_task(name, data=root)
    assert test.rows == whole.rows == [(example(task, number)["text"],) for number in range(12)]
    assert (test.windows.most, whole.windows.most) == (4, {"wikitext2": None, "c4": 256}[name])
    assert (test.kind, test.references) == ("language model", None)


def test_rows_of_running_text_are_kept_as_they_are_and_blank_ones_too(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("a", "", "b", "c\n", " \n", "d")))
    assert load_task("wikitext2", data=path).rows == [("c\n",), (" \n",), ("d",)]
    assert [row["text"] for row in task_table(TASKS["c4"], "train", path)] == ["a", "", "b"]  # the other half
    (tmp_path / "c4").mkdir()
    path.rename(tmp_path / "c4" / "text.jsonl")
    for folder in (tmp_path, tmp_path / "c4"):
        assert load_task("c4", data=folder).rows == [("c\n",), (" \n",), ("d",)]
    with pytest.raises(KpruneError, match="the table has no split 'test'; use train or validation, its two halves"):
        load_task("c4", data=tmp_path, split="test")


def test_only_one_file_of_a_large_data_set_is_read(monkeypatch):
    calls = []

    def load_dataset(*args, **options):
        calls.append((*args, options))
        return datasets.Dataset.from_list([{"text": "a"}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert load_task("c4").rows == [("a",)]
    file = "en/c4-validation.00000-of-00008.json.gz"
    assert calls == [("allenai/c4", {"split": "validation", "data_files": {"validation": file}})]
    load_task("wikitext2")
    assert calls[1] == ("Salesforce/wikitext", {"split": "test", "name": "wikitext-2-raw-v1"})


def test_the_file_of_a_large_data_set_is_read_from_a_folder_of_the_hubs_layout(tmp_path):
    path = tmp_path / "c4" / "en" / "c4-validation.00000-of-00008.json.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(b'{"text": "a"}\n{"text": "b"}\n'))
    assert load_task("c4", data=tmp_path).rows == [("a",), ("b",)]


def test_two_folders_with_the_same_name_are_not_confused(tmp_path):
    for number, rows in enumerate((12, 20)):
        root = write_data(tmp_path / str(number), TASKS["sst2"], rows)
        assert len(load_task("sst2", data=root).rows) == rows


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("imdb", {}, "there is no task 'imdb'; use one of mrpc, qqp, sst2"),
        ("sst2", {"data": "/nowhere"}, "there is no folder /nowhere; pass the folder that holds glue"),
        ("sst2", {"split": "exam"}, "cannot load the data set .*split 'exam'"),
        ("squad", {}, "holds no folder 'squad' with the data of the task squad; pass that folder's parent"),
    ],
)
def test_a_task_that_cannot_be_loaded_is_refused_with_a_remedy(name, options, message, tmp_path):
    write_data(tmp_path, TASKS["sst2"])
    with pytest.raises(KpruneError, match=message):
        load_task(name, **{"data": tmp_path, **options})


def test_without_a_network_the_error_names_the_data_option():
    with pytest.raises(KpruneError, match=r"cannot load the data set 'nyu-mll/glue'.*point --data at a folder"):
        load_task("sst2")


def test_a_test_from_a_users_table(tmp_path):
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
def test_missing_columns_are_refused(columns, label, message, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("a,b,y\nred,rot,1\nblue,blau,\n")
    with pytest.raises(KpruneError, match=message):
        read_test(read_table(str(path)), columns, label, name="mine")


def test_data_without_text_are_refused(tmp_path):
    (tmp_path / "none.csv").write_text("a,y\n")
    with pytest.raises(KpruneError, match="none has no rows with text"):
        read_test(read_table(str(tmp_path / "none.csv")), ("a",), "y", name="none")
    (tmp_path / "none.txt").write_text("\n \n")
    with pytest.raises(KpruneError, match=r"none.txt has no lines with text"):
        text_test(tmp_path / "none.txt")


def test_question_and_context_are_the_default_columns(tmp_path):
    (tmp_path / "qa.jsonl").write_text(json.dumps({"id": "1", "title": "t", "question": "q?", "context": "c."}))
    assert read_test(read_table(str(tmp_path / "qa.jsonl"))).rows == [("q?", "c.")]


def test_held_out_rows_are_not_sampled():
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


@pytest.mark.parametrize("limit", [0, -3, "3", 1.5, True])
def test_a_limit_that_leaves_no_rows_is_refused(limit):
    with pytest.raises(KpruneError, match=rf"limit is {limit!r}; pass 1 or more, or None for all rows"):
        read_test(["one", "two"], limit=limit)


def test_one_metric_may_be_given_as_a_text():
    assert read_test(["one"], metrics="accuracy").metrics == Test("t", None, ["one"], None, "accuracy").metrics
    assert read_test(["one"], metrics="accuracy").metrics == ("accuracy",)
