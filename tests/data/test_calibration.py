import numpy as np
import pytest
import task_data
import tiny
import torch

from kprune import KpruneError, draw
from kprune.data.calibration import longest_input, python_documentation
from kprune.models.batches import examples_of

SENTENCES = [f"Sentence number {n} is about {'birds ' * (n % 9)}and trees." for n in range(200)]


@pytest.fixture(scope="module")
def tokenizer():
    return task_data.load_tokenizer()


def test_tokens_are_counted_without_padding_and_met_within_one_example(tokenizer):
    rows = [(text,) for text in SENTENCES]
    for wanted in (1, 50, 700):
        batches = draw(rows, tokenizer, tokens=wanted, max_length=128)
        lengths = torch.cat([batch["attention_mask"].sum(1) for batch in batches])
        assert wanted <= int(lengths.sum()) < wanted + int(lengths[-1])


def test_rows_are_drawn_without_replacement_by_seed(tokenizer):
    rows = [(text,) for text in SENTENCES]

    def examples(seed, tokens):
        batches = draw(rows, tokenizer, tokens=tokens, max_length=128, seed=seed)
        return [tuple(example["input_ids"].tolist()) for example in examples_of(batches)]

    assert examples(0, 300) == examples(0, 300) != examples(1, 300)
    assert len(set(examples(0, 10**6))) == len(SENTENCES)


def test_a_sample_smaller_than_requested_is_used_with_a_warning(tokenizer, caplog):
    batches = draw([("one two three",)], tokenizer, tokens=100, max_length=128)
    assert int(batches[0]["attention_mask"].sum()) == 5
    assert "the data hold 5 tokens, fewer than the requested 100; all of them are used" in caplog.text


@pytest.mark.parametrize("tokens", [0, -3])
def test_a_sample_of_no_tokens_is_refused(tokens, tokenizer):
    with pytest.raises(KpruneError, match=f"the sample size is {tokens} tokens; ask for 1 or more"):
        draw([("word",)], tokenizer, tokens=tokens, max_length=128)


def test_an_empty_sample_is_refused(tokenizer):
    with pytest.raises(KpruneError, match="the sample has no text; pass a file"):
        draw([], tokenizer, tokens=100, max_length=128)


def test_pairs_and_long_texts(tokenizer):
    batch = draw([("a " * 300, "b " * 300)], tokenizer, tokens=10, max_length=32)[0]
    assert batch["input_ids"].shape == (1, 32)
    assert set(batch["token_type_ids"].unique().tolist()) == {0, 1}


def test_labels_stay_with_their_rows(tokenizer):
    rows = [(f"{number}",) for number in range(150)]
    batches = draw(rows, tokenizer, tokens=300, max_length=16, labels=list(range(150)))
    assert len(batches) > 1
    for batch in batches:
        assert tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True) == [
            str(label) for label in batch["labels"].tolist()
        ]


def test_python_documentation_is_distinct_prose_in_a_fixed_order():
    paragraphs = python_documentation()
    assert paragraphs == python_documentation()
    assert len(set(paragraphs)) == len(paragraphs) > 500
    assert min(map(len, paragraphs)) > 60


def test_masking_marks_what_it_masks_and_spares_special_tokens(tokenizer):
    rows = [(text,) for text in SENTENCES]
    plain = draw(rows, tokenizer, tokens=2000, max_length=64)
    masked = draw(rows, tokenizer, tokens=2000, max_length=64, masked=True)
    share = []
    for before, after in zip(plain, masked, strict=True):
        chosen = after["labels"] != -100
        assert (after["input_ids"][chosen] == tokenizer.mask_token_id).all()
        assert torch.equal(after["labels"][chosen], before["input_ids"][chosen])
        assert torch.equal(after["input_ids"][~chosen], before["input_ids"][~chosen])
        assert not torch.isin(before["input_ids"][chosen], torch.tensor(tokenizer.all_special_ids)).any()
        share.append(float(chosen.sum() / before["attention_mask"].sum()))
    assert 0.08 < sum(share) / len(share) < 0.18


@pytest.mark.parametrize(("family", "expected"), [("bert", 66), ("roberta", 64), ("camembert", 64), ("distilbert", 66)])
def test_the_longest_input_runs_and_a_longer_one_fails(family, expected, tokenizer):
    model = tiny.tiny_model(family, "embedding")
    longest = longest_input(tokenizer, model.config)
    assert longest == expected
    model(input_ids=torch.full((1, longest), 7))
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, longest + 1), 7))


@pytest.mark.parametrize(("row", "least"), [(("a text",), 3), (("a text", "another one"), 5)])
def test_a_length_without_room_for_text_is_refused(row, least):
    tokenizer = task_data.load_tokenizer()
    (batch,) = draw([row] * 5, tokenizer, tokens=10, max_length=least)
    assert batch["input_ids"].shape[1] == least
    with pytest.raises(KpruneError, match=rf"max_length is {least - 1}, but the tokenizer adds \d special tokens"):
        draw([row] * 5, tokenizer, tokens=10, max_length=least - 1)


def test_a_data_frame_with_two_columns_of_one_name_is_refused():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([["a text", "another"]] * 3, columns=["text", "text"])
    for columns in ((), ("text",)):
        with pytest.raises(KpruneError, match="the sample has two columns 'text'; rename one of them"):
            draw(frame, task_data.load_tokenizer(), tokens=10, max_length=16, columns=columns)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": "100"}, r"tokens is '100' \(str\); pass a whole number, such as 100,000"),
        ({"tokens": None}, r"tokens is None \(NoneType\); pass a whole number"),
        ({"tokens": True}, r"tokens is True \(bool\); pass a whole number"),
        ({"tokens": float("nan")}, r"tokens is nan \(float\); pass a whole number"),
        ({"max_length": "64"}, r"max_length is '64' \(str\); pass a whole number, such as 128"),
        ({"max_length": None}, r"max_length is None \(NoneType\); pass a whole number"),
        ({"max_length": 64.5}, r"max_length is 64.5 \(float\); pass a whole number"),
    ],
)
def test_sizes_that_are_no_whole_numbers_are_refused_by_name(options, message, tokenizer):
    with pytest.raises(KpruneError, match=message):
        draw(["a text"], tokenizer, **{"tokens": 10, "max_length": 16, **options})


@pytest.mark.parametrize("number", [2.0, np.int64(2), np.float32(2)])
def test_a_whole_number_may_have_any_type(number, tokenizer):
    (batch,) = draw(["a text"], tokenizer, tokens=number, max_length=16)
    assert batch["input_ids"].shape == (1, 4)


@pytest.mark.parametrize("other", [None, "bert-base-uncased", 7, str])
def test_what_is_no_tokenizer_is_refused_by_name(other):
    with pytest.raises(KpruneError, match=r"the tokenizer has the type \w+; pass a tokenizer, such as AutoTokenizer"):
        draw(["a text"], other, tokens=10, max_length=16)
