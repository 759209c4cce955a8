"""Tables of queries, passages and relevance become tests, whatever their shape."""

import pandas
import pytest

from kprune import KpruneError, read_test
from kprune.data.rankings import Passages, require_relevant, rows_of_rankings
from kprune.data.readers import read_table
from kprune.data.tasks import with_prompt

GROUPED = [
    {"query": "one", "passages": ["a", "b", "c"], "relevance": [0, 2, 1]},
    {"query": "two", "passages": ["d"], "relevance": [1]},
]
FLAT = [
    {"query": "one", "passage": "a", "relevance": 0},
    {"query": "two", "passage": "d", "relevance": 1},
    {"query": "one", "passage": "b", "relevance": "2"},
    {"query": "one", "passage": "c", "relevance": 1.0},
]
EXPECTED = [Passages(("a", "b", "c"), (0, 2, 1)), Passages(("d",), (1,))]


@pytest.mark.parametrize("shape", [list, iter, pandas.DataFrame])
@pytest.mark.parametrize("table", [GROUPED, FLAT])
def test_both_shapes_are_recognised_by_their_columns(shape, table):
    test = read_test(shape(table), name="mine")
    assert test.rows == [("one",), ("two",)]
    assert test.references == EXPECTED
    assert (test.kind, test.metrics) == (None, ("ndcg@10", "mrr@10"))


def test_a_csv_file_is_read(tmp_path):
    pandas.DataFrame(FLAT).to_csv(tmp_path / "flat.csv", index=False)
    assert read_test(read_table(str(tmp_path / "flat.csv"))).references == EXPECTED


def test_a_limit_counts_queries():
    test = read_test(GROUPED, limit=1)
    assert (test.rows, test.references) == ([("one",)], EXPECTED[:1])


def test_queries_without_a_relevant_passage_are_text_like_all_others():
    """They have no score, but a sample of the table needs no relevance."""
    unanswered = {"query": "three", "passages": ["x"], "relevance": [0]}
    test = read_test([*GROUPED, unanswered], name="mine")
    assert test.references == [*EXPECTED, Passages(("x",), (0,))]
    assert rows_of_rankings(test.rows, test.references, in_pairs=True)[-1] == ("three", "x")
    require_relevant(test.references, test.name)
    with pytest.raises(KpruneError, match="mine has no query with a relevant passage"):
        require_relevant(read_test([unanswered]).references, "mine")


def test_a_model_reads_pairs_or_single_texts():
    rows = [("one",), ("two",)]
    pairs = [("one", "a"), ("one", "b"), ("one", "c"), ("two", "d")]
    assert rows_of_rankings(rows, EXPECTED, in_pairs=True) == pairs
    singles = rows_of_rankings(rows, EXPECTED, in_pairs=False)
    assert [text for (text,) in singles] == ["one", "two", "a", "b", "c", "d"]
    prompted = with_prompt(read_test(GROUPED), "> ")
    assert prompted.rows[0] == ("> one",)
    assert prompted.references[0].texts == ("> a", "> b", "> c")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"relevance": [1]}, "row 1 of mine has 2 passages and 1 relevances; give one for each"),
        ({"relevance": [1, -1]}, "row 1 of mine has the relevance -1; write a number"),
        ({"relevance": [1, "no"]}, "row 1 of mine has the relevance 'no'"),
        ({"relevance": [1, float("nan")]}, "row 1 of mine has the relevance nan"),
        ({"passages": ["x", " "]}, "row 1 of mine has the passages"),
        ({"query": ""}, "row 1 of mine has the query ''; write a text"),
    ],
)
def test_a_wrong_row_is_named(change, message):
    row = {"query": "q", "passages": ["x", "y"], "relevance": [0, 1]}
    with pytest.raises(KpruneError, match=message):
        read_test([row, {**row, **change}], name="mine")
    with pytest.raises(KpruneError, match="row 1 of mine has no column 'relevance'"):
        read_test([row, {"query": "q", "passages": ["x"]}], name="mine")
