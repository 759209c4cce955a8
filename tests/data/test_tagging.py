"""Tables of words and tags become tests."""

import pandas
import pytest

from kprune import KpruneError, read_test
from kprune.data.tagging import TaggedWords

ROW = {"tokens": ["Ada", "wrote", "it"], "tags": ["B-PER", "O", "O"]}


@pytest.mark.parametrize("shape", [list, iter, pandas.DataFrame])
def test_a_table_is_recognised_by_its_columns(shape):
    test = read_test(shape([ROW, {"tokens": [], "tags": []}, ROW]), name="mine")
    assert test.rows == [("Ada wrote it",)] * 2
    assert test.references == [TaggedWords(("Ada", "wrote", "it"), ("B-PER", "O", "O"))] * 2
    assert (test.kind, test.metrics) == ("token classification", ("entity-f1", "entity-precision", "entity-recall"))


def test_tags_may_be_numbers_under_the_name_of_the_hubs_data_sets():
    test = read_test([{"tokens": ["Ada"], "ner_tags": [1], "pos_tags": [7]}])
    assert test.references == [TaggedWords(("Ada",), (1,))]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tags": ["O"]}, r"row 1 of mine has the tags \['O'\] for 3 tokens; write one tag for each token"),
        ({"tags": ["O", "O", None]}, "row 1 of mine has the tags"),
        ({"tokens": "Ada wrote it"}, "row 1 of mine has the tokens 'Ada wrote it'; write a list of words"),
        ({"tokens": ["Ada wrote", "it", ""]}, "row 1 of mine has the tokens"),
    ],
)
def test_a_wrong_row_is_named(change, message):
    with pytest.raises(KpruneError, match=message):
        read_test([ROW, {**ROW, **change}], name="mine")
    with pytest.raises(KpruneError, match="no rows with words"):
        read_test([{"tokens": [], "tags": []}])
