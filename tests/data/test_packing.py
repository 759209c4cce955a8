import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from task_data import load_tokenizer, word_tokenizer

from kprune import KpruneError, draw
from kprune.data.packing import added_tokens, document_tokens

WORDS = [f"w{number}" for number in range(300)]
END, START = len(WORDS), len(WORDS) + 1


def rows_of(lengths: list[int]) -> list[tuple[str]]:
    """Rows of consecutive words, so that every token tells its place."""
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    return [(" ".join(WORDS[start : start + length]),) for start, length in zip(starts, lengths, strict=True)]


def blocks_of(rows, tokenizer, length, seed=0, tokens=10**6):
    batches = draw(rows, tokenizer, tokens=tokens, max_length=length, seed=seed, packed=True)
    assert all(bool(batch["attention_mask"].all()) for batch in batches)
    return torch.cat([batch["input_ids"] for batch in batches])


@given(
    lengths=st.lists(st.integers(1, 12), min_size=2, max_size=20),
    length=st.integers(2, 9),
    seed=st.integers(0, 3),
    has_end=st.booleans(),
    adds_start=st.booleans(),
)
def test_packing_loses_no_token_and_keeps_rows_whole_and_in_order(lengths, length, seed, has_end, adds_start):
    rows, tokenizer = rows_of(lengths), word_tokenizer(has_end=has_end, adds_start=adds_start)
    joined = [list(document_tokens([row], tokenizer)) for row in rows]
    total = sum(map(len, joined))
    if total < length:
        return
    blocks = blocks_of(rows, tokenizer, length, seed)
    flat = blocks.flatten().tolist()
    assert blocks.shape == (total // length, length)
    by_first = {row[adds_start]: row for row in joined}  # the first word names the row
    while flat:  # rows follow each other whole; only the end is cut
        row = by_first.pop(flat[adds_start]) if len(flat) > adds_start else [START]
        assert flat[: len(row)] == row[: len(flat)]
        flat = flat[len(row) :]
    assert sum(map(len, by_first.values())) < length + max(map(len, joined))


def test_blocks_are_drawn_by_seed_until_the_tokens_suffice():
    rows, tokenizer = rows_of([10] * 30), word_tokenizer()
    first, again, other = (blocks_of(rows, tokenizer, 4, seed, tokens=50) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (13, 4)


def test_the_end_of_text_token_is_between_rows_and_never_twice():
    tokenizer = word_tokenizer()
    assert list(document_tokens([("w1 w2",), ("w3 <end>",), ("w4", "w5")], tokenizer)) == [1, 2, END, 3, END, 4, 5, END]
    assert list(document_tokens([("w1",), ("w2",)], word_tokenizer(has_end=False, adds_start=True))) == [
        START, 1, START, 2,
    ]  # fmt: skip


def test_too_little_text_and_labels_are_refused(caplog):
    tokenizer = word_tokenizer()
    with pytest.raises(KpruneError, match=r"the data hold 3 tokens, fewer than a block of 8; add text, or use a small"):
        draw(["w1 w2"], tokenizer, tokens=10, max_length=8, packed=True)
    with pytest.raises(KpruneError, match=r"the sample has no text"):
        draw([], tokenizer, tokens=10, max_length=8, packed=True)
    with pytest.raises(KpruneError, match=r"max_length is 1, but a block needs 2 tokens or more"):
        draw(["w1 w2"], tokenizer, tokens=10, max_length=1, packed=True)
    with pytest.raises(KpruneError, match="leave masked and labels out"):
        draw(["w1 w2"], tokenizer, tokens=10, max_length=8, packed=True, masked=True)
    draw(["w1 w2 w3"], tokenizer, tokens=10, max_length=2, packed=True)
    assert "the data hold 4 tokens, fewer than the requested 10" in caplog.text


def test_special_tokens_around_a_text():
    assert added_tokens(word_tokenizer(adds_start=True)) == ([START], [])
    assert added_tokens(word_tokenizer()) == ([], [])
    tokenizer = load_tokenizer()
    assert added_tokens(tokenizer) == ([tokenizer.cls_token_id], [tokenizer.sep_token_id])


def test_without_a_padding_token_the_end_of_text_token_pads():
    batch = draw(["w1 w2 w3", "w4"], word_tokenizer(), tokens=10, max_length=8)[0]
    order = batch["attention_mask"].sum(1).argsort(descending=True)
    assert batch["input_ids"][order].tolist() == [[1, 2, 3], [4, END, END]]
    assert batch["attention_mask"][order].tolist() == [[1, 1, 1], [1, 0, 0]]
