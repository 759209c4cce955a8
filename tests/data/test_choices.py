import json

import pandas
import pytest
from command_line import kprune, write_decoder

from kprune import KpruneError, read_test
from kprune.data.choices import Choices
from kprune.data.readers import read_table

ROW = {"context": "The sky is", "choices": ["blue.", "a fish."], "answer": 0}


@pytest.mark.parametrize("shape", [list, iter, pandas.DataFrame])
@pytest.mark.parametrize("answer", [1, "1", 1.0, "a fish."])
def test_a_table_of_choices_is_recognised_by_its_columns(shape, answer):
    test = read_test(shape([{**ROW, "answer": answer}, ROW]), name="mine")
    assert test.rows == [("The sky is",)] * 2
    assert test.references == [Choices(("blue.", "a fish."), 1), Choices(("blue.", "a fish."), 0)]
    assert (test.kind, test.metrics) == ("causal language model", ("accuracy", "accuracy-norm"))


def test_named_columns_are_plain_text():
    assert read_test([ROW], ("context",)).references is None
    assert read_test(iter([{"text": "a"}, {"text": "b"}])).rows == [("a",), ("b",)]


def test_the_number_of_a_choice_that_is_a_number_is_its_text():
    assert read_test([{**ROW, "choices": ["1", "0"], "answer": "0"}]).references[0].answer == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": 2}, r"row 1 of mine has the answer 2; write the right choice, or its number from 0 to 1"),
        ({"answer": "red"}, r"row 1 of mine has the answer 'red'; write the right choice"),
        ({"answer": True}, r"row 1 of mine has the answer True"),
        ({"answer": None}, r"row 1 of mine has the answer None"),
        ({"choices": ["one"]}, r"row 1 of mine has the choices \['one'\]; write a list of two texts or more"),
        ({"choices": "one"}, r"row 1 of mine has the choices 'one'"),
        ({"choices": ["one", " "]}, r"row 1 of mine has the choices \['one', ' '\]"),
        ({"context": None}, r"row 1 of mine has the context None; write a text, which may be empty"),
    ],
)
def test_a_wrong_row_is_named(change, message):
    with pytest.raises(KpruneError, match=message):
        read_test([ROW, {**ROW, **change}], name="mine")


def test_a_row_without_a_column_is_named():
    with pytest.raises(KpruneError, match="row 1 of mine has no column 'answer'; give every row context, choices, ans"):
        read_test([ROW, {"context": "a", "choices": ["b", "c"]}], name="mine")


def test_choices_from_the_command_line(tmp_path):
    rows = [{**ROW, "context": f"Number {n} is", "answer": n % 2} for n in range(10)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert len(read_test(read_table(tmp_path / "mine.jsonl"), limit=4).rows) == 4
    small, dense = write_decoder(tmp_path / "small", seed=1), write_decoder(tmp_path / "dense")
    result = kprune("evaluate", small, "--against", dense, "--data", tmp_path / "mine.jsonl", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [figure["name"] for figure in found["figures"]] == ["accuracy", "accuracy-norm"]
    assert (found["examples"], found["resampled"]) == (10, 10)
    assert [figure["name"] for figure in found["fidelity"]] == ["agreement", "divergence"]
