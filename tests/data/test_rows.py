"""Whatever Python data are passed: the texts that were meant are tokenised, or a sentence refuses them."""

import collections
import copy
import io
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from task_data import load_tokenizer

from kprune import KpruneError, Pruner, Test, draw, evaluate, prune, read_lines, read_rows, read_test
from kprune.data.rows import as_rows
from kprune.models.batches import examples_of

TEXTS = ["one word", "two words here", "", "abcdefgh", "ijklmnop", "three"]
PAIRS = [(text, f"answer {number}") for number, text in enumerate(TEXTS)]


def dicts(texts):
    return [{"text": text, "number": number} for number, text in enumerate(texts)]


SHAPES = {
    "list": list,
    "tuple": tuple,
    "deque": collections.deque,
    "iterator": iter,
    "generator": lambda texts: (text for text in texts),
    "one-tuples": lambda texts: [(text,) for text in texts],
    "lists": lambda texts: [[text] for text in texts],
    "array": lambda texts: np.array(texts, dtype=object),
    "array of text": lambda texts: np.array(texts, dtype=str),
    "series": pd.Series,
    "series of strings": lambda texts: pd.Series(texts, dtype="string"),
    "dicts": dicts,
    "dicts from a generator": lambda texts: iter(dicts(texts)),
    "data set": lambda texts: datasets.Dataset.from_list(dicts(texts)),
    "column of a data set": lambda texts: datasets.Dataset.from_list(dicts(texts))["text"],
    "data set in torch's format": lambda texts: datasets.Dataset.from_list(dicts(texts)).with_format("torch"),
    "streamed data set": lambda texts: datasets.Dataset.from_list(dicts(texts)).to_iterable_dataset(),
    "data frame": lambda texts: pd.DataFrame(dicts(texts)),
    "data frame with an index": lambda texts: pd.DataFrame(dicts(texts), index=[f"i{n}" for n in range(len(texts))]),
}
HAVE_COLUMNS = [name for name in SHAPES if name.startswith(("dicts", "data"))] + ["streamed data set"]
texts_strategy = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12), min_size=1, max_size=6
)


def sampled(data, **options):
    """The token numbers of every example that is drawn, sorted."""
    batches = draw(data, load_tokenizer(), tokens=10**6, max_length=64, **options)
    return sorted(example["input_ids"].tolist() for example in examples_of(batches))


def tokenised(rows):
    return sorted(load_tokenizer()(*row)["input_ids"] for row in rows)


def meant(texts):
    return [(text,) for text in texts if text.strip()]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_texts_of_every_shape_are_sampled(shape):
    make = SHAPES[shape]
    assert sampled(make(TEXTS)) == tokenised(meant(TEXTS))
    assert read_test(make(TEXTS)).rows == meant(TEXTS)
    if shape in HAVE_COLUMNS:
        assert sampled(make(TEXTS), columns=["text"]) == sampled(make(TEXTS), columns="text") == tokenised(meant(TEXTS))
        assert read_test(make(TEXTS), ["text"], "number").references == [0, 1, 3, 4, 5]
        with pytest.raises(KpruneError, match=r"the sample has no column 'body'; it has text, number"):
            sampled(make(TEXTS), columns=["body"])
        with pytest.raises(KpruneError, match=r"column 'number' of the sample holds 0|tensor\(0\).*, not text; name"):
            sampled(make(TEXTS), columns=["number"])
    else:
        with pytest.raises(KpruneError, match="without a column 'text'; pass rows that have it"):
            sampled(make(TEXTS), columns=["text"])


@given(texts_strategy, st.sampled_from(sorted(set(SHAPES) - {"array of text"})))
def test_rows_do_not_depend_on_the_shape(texts, shape):
    assert as_rows(SHAPES[shape](texts)) == meant(texts)


PAIR_SHAPES = {
    "tuples": list,
    "lists": lambda pairs: [list(pair) for pair in pairs],
    "zip": lambda pairs: zip(*map(list, zip(*pairs, strict=True)), strict=True),
    "array": np.array,
    "series": pd.Series,
}


@pytest.mark.parametrize("shape", PAIR_SHAPES)
def test_pairs_of_every_shape_are_sampled(shape):
    expected = tokenised([pair for pair in PAIRS if pair[0]])
    assert sampled(PAIR_SHAPES[shape](PAIRS)) == expected


@pytest.mark.parametrize("make", [list, pd.DataFrame, datasets.Dataset.from_list])
def test_pairs_in_columns_are_sampled_in_the_order_that_is_named(make):
    rows = [{"b": second, "n": 1, "a": first} for first, second in PAIRS]
    assert sampled(make(rows), columns=["a", "b"]) == tokenised([pair for pair in PAIRS if pair[0]])
    with pytest.raises(KpruneError, match=r"the sample has 2 text columns \(b, a\); name one or two of them"):
        sampled(make(rows))


def test_missing_texts_are_left_out_with_their_labels():
    frame = pd.DataFrame({"text": [None, "one", float("nan"), "two", pd.NA], "y": range(5)})
    assert as_rows(frame) == as_rows(frame["text"]) == [("one",), ("two",)]
    batches = draw(frame, load_tokenizer(), tokens=100, max_length=16, labels=frame["y"].tolist())
    words = load_tokenizer().batch_decode(batches[0]["input_ids"], skip_special_tokens=True)
    assert dict(zip(words, batches[0]["labels"].tolist(), strict=True)) == {"one": 1, "two": 3}
    with pytest.raises(KpruneError, match="the sample has 5 rows and 4 labels; give one for each row"):
        draw(frame, load_tokenizer(), tokens=100, max_length=16, labels=[0] * 4)
    with pytest.raises(KpruneError, match="row 1 of the data has no 'y'; fill it in"):
        read_test(pd.DataFrame({"text": ["a", "b"], "y": [1.0, None]}), ["text"], "y")


def test_a_text_column_that_the_first_row_lacks_is_noticed():
    rows = [{"title": "t", "text": None}, {"title": "t", "text": "the text"}]
    with pytest.raises(KpruneError, match=r"row 1 of the data has 2 text columns \(title, text\); name one or two"):
        as_rows(rows)
    assert as_rows([{"n": 1, "text": None}, {"n": 2, "text": "the text"}]) == [("the text",)]


REFUSED = {
    "one text": ("some text", "the sample has the type str; pass a list of texts"),
    "bytes": (b"some text", "the sample has the type bytes; pass"),
    "path": (Path("a.txt"), "has the type PosixPath; pass .* or read a file with kprune.read_lines"),
    "open file": (io.StringIO("a\nb\n"), "the sample has the type StringIO; pass"),
    "None": (None, "the sample has the type NoneType"),
    "number": (7, "the sample has the type int"),
    "function": (len, "the sample has the type builtin_function_or_method"),
    "set": ({"a", "b"}, "the sample has the type set"),
    "columns": ({"text": ["a", "b"]}, "the sample has the type dict"),
    "tokenised": (lambda: load_tokenizer()(["a", "b"]), "the sample has the type BatchEncoding"),
    "splits": (
        lambda: datasets.DatasetDict({"train": datasets.Dataset.from_list(dicts(TEXTS))}),
        "the sample has the splits train; pass one of them",
    ),
    "scalar array": (np.array("text"), "the sample has the type ndarray"),
    "numbers": ([1, 2], "row 0 of the sample has the type int; pass a list of texts"),
    "tensor": (torch.ones(2), "row 0 of the sample has the type float"),
    "texts and labels": ([("good", 1), ("bad", 0)], r"row 0 of the sample holds 1 \(int\), not text"),
    "bytes in a list": ([b"a"], "row 0 of the sample has the type bytes"),
    "triples": ([("a", "b", "c")], "row 0 of the sample has 3 texts; pass one, or two for a pair"),
    "no texts in a row": ([()], "row 0 of the sample has 0 texts"),
    "deeper": ([[["a"], ["b"]]], r"row 0 of the sample holds \['a'\] \(list\), not text"),
    "texts and pairs": (["a", ("b", "c")], r"row 1 of the sample, \('b', 'c'\), is not like those before it; make all"),
    "texts and dicts": (["a", {"text": "b"}], "row 1 of the sample, .*, is not like those before it"),
    "itertuples": (lambda: pd.DataFrame(dicts(TEXTS)).itertuples(), "row 0 of the sample has 3 texts"),
    "iterrows": (lambda: pd.DataFrame(dicts(TEXTS)).iterrows(), r"row 0 of the sample holds 0 \(int\), not text"),
    "tokens": (
        lambda: datasets.Dataset.from_list([{"input_ids": [1, 2]}]),
        r"the sample has 0 text columns \(none\); name one",
    ),
    "dicts without the text": ([{"text": "a"}, {"body": "b"}], "row 1 of the sample has 2 text columns .text, body."),
    "empty dicts": ([{}], "the sample has 0 text columns"),
    "empty": ([], "the sample has no text; pass"),
    "empty generator": (iter(()), "the sample has no text; pass"),
    "empty frame": (pd.DataFrame(), "the sample has no text; pass"),
    "blank": (["", " ", None], "the sample has no text; pass"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_text_is_refused_by_name(case):
    data, message = REFUSED[case]
    with pytest.raises(KpruneError, match=message):
        sampled(data() if callable(data) and data is not len else data)


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=3) | st.text("abc ", max_size=4)
anything = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from(["KEY", "OTHER"]), inner, max_size=2)
        | st.lists(inner, max_size=4).map(iter)
        | st.lists(inner, max_size=3).map(lambda values: pd.Series(values, dtype=object))
        | st.lists(inner, max_size=3).map(lambda values: pd.DataFrame({"KEY": pd.Series(values, dtype=object)}))
    ),
    max_leaves=8,
)


def refuses_or_returns(function, *arguments):
    """What the function returns, or None if a sentence refuses the arguments."""
    try:
        return function(*arguments)
    except KpruneError as error:
        if not str(error).endswith("."):
            raise
        return None


@settings(max_examples=300)
@given(anything)
def test_anything_is_read_as_its_own_texts_or_refused(data):
    copy = list(data) if isinstance(data, collections.abc.Iterator) else data
    rows = refuses_or_returns(as_rows, iter(copy) if copy is not data else data) or []
    assert all(isinstance(text, str) and set(text) <= set("abc ") for row in rows for text in row)  # never a key
    if isinstance(copy, list | tuple) and all(isinstance(value, str) for value in copy):
        assert rows == meant(copy)


@settings(max_examples=100, deadline=None)
@given(anything)
def test_anything_else_is_refused_by_readers_prune_and_evaluate(data):
    for read in (read_lines, read_rows):
        if not isinstance(data, str):  # a text is a path
            with pytest.raises(KpruneError, match=r"a reader takes a path, not a \w+; pass data in memory to"):
                read(data)
    with pytest.raises(KpruneError, match=r"\.$"):
        prune(MODEL, data, reduction=0.5)
    with pytest.raises(KpruneError, match=r"a model is evaluated on a Test, not on a \w+; make one with read_test"):
        evaluate(MODEL, load_tokenizer(), data)


MODEL = tiny.tiny_model("bert", "classification", vocab_size=30522, pad_token_id=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_test_takes_rows_of_every_shape(shape):
    texts = [text for text in TEXTS if text]
    ordinary, other = (
        evaluate(MODEL, load_tokenizer(), Test("mine", None, rows, [0, 1, 2, 0, 1]))
        for rows in ([(text,) for text in texts], SHAPES[shape](texts))
    )
    assert other.figures == ordinary.figures


@settings(max_examples=200)
@given(anything)
def test_a_test_of_anything_has_its_own_texts_or_is_refused(data):
    test = refuses_or_returns(Test, "mine", None, data, None)
    rows = test.rows if test else []
    assert all(set(text) <= set("abc ") for row in rows for text in row)
    assert len({len(row) for row in rows}) < 2


def test_a_test_needs_a_reference_and_a_text_for_each_row():
    with pytest.raises(KpruneError, match="mine has 2 rows and 3 references; give one for each row"):
        Test("mine", None, ["a", "b"], [1, 2, 3])
    with pytest.raises(KpruneError, match="row 1 of mine has no text; remove the row"):
        Test("mine", None, ["a", None], [1, 2])


def test_tokenised_batches_of_every_shape_prune_alike():
    batch = dict(load_tokenizer()([f"text {n} about {n * n}" for n in range(60)], padding=True, return_tensors="pt"))
    shapes = [[batch], batch, iter([batch]), [{name: value.tolist() for name, value in batch.items()}]]
    shapes.append(load_tokenizer()([f"text {n} about {n * n}" for n in range(60)], padding=True, return_tensors="np"))
    kept = [[step.kept for step in prune(MODEL, shape, reduction=0.5).steps] for shape in shapes]
    assert all(other == kept[0] for other in kept)


words = st.lists(st.text("abcdefgh xyz", min_size=1, max_size=12), min_size=1, max_size=6)
encoded = {"padding": True, "return_tensors": "pt"}


def read_by_model(work):
    """What `work()` returns, and the token numbers of every text that the model reads in it."""
    seen = set()

    def note(_, inputs):
        # The tokenizer pads with 0, on either side.
        seen.update(tuple(filter(None, row)) for row in inputs[0].tolist())

    hook = MODEL.get_input_embeddings().register_forward_pre_hook(note)
    try:
        return work(), seen
    finally:
        hook.remove()


def one_by_one(texts):
    return [dict(load_tokenizer()([text], return_tensors="pt")) for text in texts]


def tokenised_data_set(texts):
    data = datasets.Dataset.from_list(dicts(texts))
    return data.map(lambda rows: load_tokenizer()(rows["text"], padding=True), batched=True, remove_columns=["text"])


def padded_on_the_left(texts):
    tokenizer = copy.deepcopy(load_tokenizer())
    tokenizer.padding_side = "left"
    return tokenizer(texts, **encoded)


BATCHES = {
    "one encoding": lambda texts: load_tokenizer()(texts, **encoded),
    "one dict": lambda texts: dict(load_tokenizer()(texts, **encoded)),
    "list": one_by_one,
    "tuple": lambda texts: tuple(one_by_one(texts)),
    "generator": lambda texts: (batch for batch in one_by_one(texts)),
    "series": lambda texts: pd.Series(one_by_one(texts)),
    "arrays": lambda texts: load_tokenizer()(texts, padding=True, return_tensors="np"),
    "lists of numbers": lambda texts: load_tokenizer()(texts, padding=True),
    "padded on the left": padded_on_the_left,
    "without segments": lambda texts: load_tokenizer()(texts, return_token_type_ids=False, **encoded),
    "loader": lambda texts: torch.utils.data.DataLoader(tokenised_data_set(texts).with_format("torch"), batch_size=2),
    "data set by batches": lambda texts: tokenised_data_set(texts).with_format("torch").iter(3),
    "drawn": lambda texts: draw(texts, load_tokenizer(), tokens=10**6, max_length=64),
}
NO_BATCHES = {
    "texts": list,
    "texts in a dict": lambda texts: {"input_ids": texts},
    "rows": dicts,
    "frame": lambda texts: pd.DataFrame(dicts(texts)),
    "data set": lambda texts: datasets.Dataset.from_list(dicts(texts)),
    "tokenised rows": tokenised_data_set,
    "tokenised frame": lambda texts: tokenised_data_set(texts).to_pandas(),
    "numbers without a name": lambda texts: load_tokenizer()(texts, padding=True)["input_ids"],
    "tensor without a name": lambda texts: load_tokenizer()(texts, **encoded)["input_ids"],
    "not padded": lambda texts: load_tokenizer()([*texts, "some more words than those before"] * 2),
    "one row": lambda texts: load_tokenizer()(texts[0]),
    "floats": lambda texts: {name: value / 1 for name, value in load_tokenizer()(texts, **encoded).items()},
}


@settings(max_examples=60)
@given(words, st.sampled_from(sorted(BATCHES)))
def test_prune_samples_the_texts_of_batches_of_every_shape(texts, shape):
    texts = [text for text in texts if text.strip()] or ["a"]
    sample = Pruner(MODEL, BATCHES[shape](texts), reduction=0.3, ridge=0.1).shared.sample
    rows = [row for batch in sample.batches for row in zip(batch.inputs["input_ids"], batch.mask, strict=True)]
    assert sorted(ids[mask].tolist() for ids, mask in rows) == tokenised(meant(texts))


@settings(max_examples=40)
@given(words, st.sampled_from(sorted(NO_BATCHES)))
def test_prune_refuses_what_is_no_batch(texts, shape):
    with pytest.raises(KpruneError, match=r"; \D*(pass|tokenise) .*\.$"):
        prune(MODEL, NO_BATCHES[shape](texts), reduction=0.3, ridge=0.1)


@settings(max_examples=40)
@given(words, st.sampled_from(sorted(set(SHAPES) - {"array of text"})))
def test_evaluate_reads_the_texts_of_every_shape_with_their_labels(texts, shape):
    texts = [*texts, "a"]  # one text is not blank
    has_columns = shape in HAVE_COLUMNS
    test = read_test(SHAPES[shape](texts), *((["text"], "number") if has_columns else ()))
    numbers = [number for number, text in enumerate(texts) if text.strip()]
    if has_columns:
        assert list(map(int, test.references)) == numbers
    test = Test("mine", None, test.rows, [number % 3 for number in numbers])
    _, seen = read_by_model(lambda: evaluate(MODEL, load_tokenizer(), test))
    assert seen == set(map(tuple, tokenised(meant(texts))))


@settings(max_examples=200)
@given(anything, st.sampled_from([(), ["KEY"], ["KEY", "OTHER"], "KEY", ["NONE"]]), st.sampled_from([None, "OTHER"]))
def test_read_test_gives_the_texts_of_anything_or_refuses_it(data, columns, label):
    test = refuses_or_returns(read_test, data, columns, label)
    rows = test.rows if test else []
    assert all(set(text) <= set("abc ") for row in rows for text in row)
    assert len({len(row) for row in rows}) < 2
    assert test is None or label is None or len(test.references) == len(rows)
