import json

import pytest
from task_data import write_data

from kprune.data.tasks import TASKS
from kprune.errors import BadOptions, BadSample, KpruneError
from kprune.jobs.data_options import MOST_HELD_OUT, DataOptions


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A text file, a table, another table and the data of a task."""
    root = tmp_path_factory.mktemp("data")
    (root / "lines.txt").write_text("\n".join(f"line {n}" for n in range(100)))
    (root / "other.txt").write_text("\n".join(f"other {n}" for n in range(10)))
    for name in ("rows", "more"):
        rows = [{"a": f"{name} {n}", "b": "second", "y": n % 2} for n in range(40)]
        (root / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_data(root / "sets", TASKS["sst2"])
    return root


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one of --text, --data and --task"),
        ({"text": "t", "task": "sst2"}, "one of --text, --data and --task"),
        ({"text": "t", "table": "d"}, "one of --text, --data and --task"),
        ({"task": "sst2", "columns": ("a",)}, "a --task defines its columns, labels, metrics and subset; leave those"),
        ({"task": "sst2", "label": "y"}, "a --task defines"),
        ({"task": "sst2", "metrics": ("f1",)}, "a --task defines"),
        ({"task": "sst2", "subset": "x"}, "a --task defines"),
        ({"table": ("a.csv", "some/set")}, "several --data are read in order if all are files, but some/set is none"),
        ({"table": ("a", "b"), "task": "sst2"}, "several --data are read in order if all are files, but a is none"),
        ({"text": "t", "label": "y"}, "a --text file has no columns and no labels; use --data"),
        ({"text": "t", "columns": ("a",)}, "a --text file has no columns and no labels; use --data"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(BadOptions, match=message):
        DataOptions(**options).require_one_source()


@pytest.mark.parametrize("option", [{"validation": "x"}, {"metrics": ("f1",)}, {"limit": 5}])
def test_options_of_a_test_need_a_test(option, place):
    data = DataOptions(table=str(place / "rows.jsonl"), **option)
    with pytest.raises(BadOptions, match="--validation, --metric and --limit belong to a test; add --evaluate"):
        data.sample_and_test(wants_test=False, seed=0)


def test_a_tenth_of_a_file_is_held_out(place):
    sample, test = DataOptions(text=place / "lines.txt").sample_and_test(wants_test=True, seed=0)
    assert (len(sample.rows), len(test.rows)) == (90, 10)
    assert set(sample.rows).isdisjoint(test.rows)
    assert DataOptions(text=place / "lines.txt").sample_and_test(wants_test=True, seed=1)[1].rows != test.rows
    assert DataOptions(text=place / "lines.txt").sample_and_test(wants_test=False, seed=0)[1] is None
    assert MOST_HELD_OUT == 2000


def test_a_test_may_be_another_file(place):
    data = DataOptions(table=str(place / "rows.jsonl"), columns=("a",), label="y", validation=str(place / "more.jsonl"))
    sample, test = data.sample_and_test(wants_test=True, seed=0)
    assert sample.rows[0] == ("rows 0",)
    assert (test.rows[0], test.references[:2]) == (("more 0",), [0, 1])
    text = DataOptions(text=place / "lines.txt", validation=str(place / "other.txt"), limit=5)
    assert len(text.sample_and_test(wants_test=True, seed=0)[1].rows) == 5


def test_a_file_has_no_splits(place):
    with pytest.raises(KpruneError, match=r"lines.txt is a file without a split 'train'; name a file or leave"):
        DataOptions(text=place / "lines.txt").test("train")
    data = DataOptions(table=str(place / "rows.jsonl"), columns=("a",), validation="typo.csv")
    with pytest.raises(KpruneError, match=r"rows.jsonl is a file without a split 'typo.csv'"):
        data.sample_and_test(wants_test=True, seed=0)


def test_a_task_has_two_splits(place):
    data = DataOptions(task="sst2", table=str(place / "sets"))
    sample, test = data.sample_and_test(wants_test=True, seed=0)
    assert (sample.labels, test.labels) == (TASKS["sst2"].labels, TASKS["sst2"].labels)
    assert test.metrics == TASKS["sst2"].metrics
    assert len(DataOptions(task="sst2", table=str(place / "sets"), limit=3).test(None).rows) == 3


@pytest.mark.parametrize(
    "options", [{"split": "validation"}, {"validation": "train"}, {"split": "x", "validation": "x"}]
)
def test_a_split_is_not_sampled_and_tested(options, place):
    data = DataOptions(task="sst2", table=str(place / "sets"), **options)
    with pytest.raises(BadOptions, match="is sampled and cannot also be the test; name another split"):
        data.sample_and_test(wants_test=True, seed=0)


def test_a_data_set_is_not_sampled_and_tested(place):
    data = DataOptions(table=str(place / "sets/glue"), subset="sst2", columns=("sentence",), validation="train")
    with pytest.raises(BadOptions, match="'train' is sampled and cannot also be the test; name another split"):
        data.sample_and_test(wants_test=True, seed=0)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadSample, match=r"there is no file .*nope\.csv"):
        DataOptions(table=str(tmp_path / "nope.csv")).test(None)


def test_several_files_are_read_in_order(place):
    lines, other = place / "lines.txt", place / "other.txt"
    sample, _ = DataOptions(text=(lines, other)).sample_and_test(wants_test=False, seed=0)
    assert sample.rows == [(line,) for path in (lines, other) for line in path.read_text().split("\n")]
    assert sample.name == "lines.txt, other.txt"
    tables = tuple(str(place / name) for name in ("rows.jsonl", "more.jsonl"))
    test = DataOptions(table=tables, columns=("a",), label="y").test(None)
    assert test.rows == [(f"{name} {n}",) for name in ("rows", "more") for n in range(40)]
    assert test.references == [n % 2 for _ in range(2) for n in range(40)]
    assert len(DataOptions(text=(lines, other), limit=7).test(None).rows) == 7


def test_files_of_other_columns_are_refused(place, tmp_path):
    (tmp_path / "qa.jsonl").write_text('{"question": "q", "context": "c"}')
    (tmp_path / "one.jsonl").write_text('{"text": "t"}')
    data = DataOptions(table=(str(tmp_path / "one.jsonl"), str(tmp_path / "qa.jsonl")))
    with pytest.raises(BadSample, match=r"row 1 of one.jsonl, qa.jsonl, \('q', 'c'\), is not like those before it"):
        data.test(None)
    with pytest.raises(BadSample, match=r"there is no file .*nope\.csv"):
        DataOptions(table=(str(tmp_path / "one.jsonl"), "nope.csv")).test(None)
