import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from kprune.errors import BadSample
from kprune.models.batches import examples_of, regroup, require_fit
from kprune.models.families import max_positions

CPU = torch.device("cpu")


def rows_of(sample):
    """Token numbers of every example, by its number in the given order."""
    rows = {}
    for batch in sample.batches:
        for row, number in enumerate(batch.example.tolist()):
            rows[number] = batch.inputs["input_ids"][row][batch.mask[row]].tolist()
    return rows


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=40),
    st.integers(1, 200),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_batches_hold_every_example_once_within_their_limits(lengths, tokens, most_padding):
    inputs = [torch.full((length,), 5 + number) for number, length in enumerate(lengths)]
    examples = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in inputs]
    sample = regroup(examples, tokens=tokens, pad_id=1, device=CPU, most_padding=most_padding)
    assert rows_of(sample) == {number: ids.tolist() for number, ids in enumerate(inputs)}
    assert (sample.examples, sample.tokens) == (len(lengths), sum(lengths))
    widths = [batch.mask.shape[1] for batch in sample.batches]
    assert widths == sorted(widths, reverse=True)  # the longest first
    for batch in sample.batches:
        assert len(batch.example) == 1 or batch.mask.numel() <= tokens
        assert 1 - batch.real_tokens / batch.mask.numel() <= most_padding
        assert set(batch.inputs["input_ids"][~batch.mask].tolist()) <= {1}


@pytest.mark.parametrize("way", [{"left": True}, {"extra": 9}, {"size": 1}, {"size": 64}], ids=str)
def test_padding_and_batches_of_the_caller_do_not_matter(way):
    inputs = tiny.texts(20)
    examples = examples_of(tiny.batched(inputs, **way))
    assert [example["input_ids"].tolist() for example in examples] == [ids.tolist() for ids in inputs]
    assert all(example["attention_mask"].all() for example in examples)


def test_halved_batches_hold_the_same_examples():
    sample = tiny.sample_of(tiny.texts(50), tokens=400)
    halved = sample.halved()
    assert max(len(batch.example) for batch in halved.batches) < max(len(batch.example) for batch in sample.batches)
    for part in (sample, halved):
        for batch in part.batches:
            ids = batch.inputs["input_ids"]
            assert torch.equal(batch.real(ids[..., None])[:, 0], ids[batch.mask])
            assert batch.real_tokens == int(batch.mask.sum())
    assert rows_of(halved) == rows_of(sample)
    single = sample
    while len(single.largest.example) > 1:
        before = single.largest.mask.numel()
        single = single.halved()
        longest = max(batch.mask.shape[1] for batch in single.batches)
        assert single.largest.mask.numel() <= before / 2 + longest  # the larger half may have one example more
    assert single.largest.mask.numel() == 24


def test_totals_are_sums_over_real_tokens():
    batch = max(tiny.sample_of(tiny.texts(30), tokens=400).batches, key=lambda batch: batch.mask.numel())
    assert batch.tokens is not None  # there is padding
    values = torch.randn(*batch.mask.shape, 3)
    expected = torch.stack([values[row][batch.mask[row]].sum(0) for row in range(len(values))])
    torch.testing.assert_close(batch.totals(values), expected)


def test_labels_are_per_example_or_mark_predicted_tokens():
    (batch,) = tiny.batched(tiny.texts(4, shortest=6, longest=6))
    per_example = regroup(
        examples_of([{**batch, "labels": torch.arange(4)}]), tokens=100, pad_id=1, device=CPU
    ).batches[0]
    assert per_example.labels.tolist() == per_example.example.tolist()
    assert per_example.predicted is None
    labels = torch.where(batch["input_ids"] % 2 == 0, batch["input_ids"], -100)
    per_token = regroup(examples_of([{**batch, "labels": labels}]), tokens=100, pad_id=1, device=CPU).batches[0]
    assert per_token.labels is None
    assert torch.equal(per_token.predicted, per_token.inputs["input_ids"] % 2 == 0)
    assert "labels" not in per_token.inputs


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([{"ids": torch.ones(2, 3)}], r"no 'input_ids', only \['ids'\]; pass the tokenizer's output"),
        ([{"input_ids": torch.ones(3, dtype=torch.long)}], r"input_ids have shape \(3,\); pass batches of shape"),
        (
            [{"input_ids": torch.ones(2, 3, dtype=torch.long), "attention_mask": torch.ones(2, 3, 3)}],
            r"attention_mask has shape \(2, 3, 3\) and input_ids \(2, 3\); they must be equal",
        ),
        (
            [{"input_ids": torch.ones(1, 2)}, {"input_ids": torch.ones(1, 2), "token_type_ids": torch.ones(1, 2)}],
            r"batches have different keys: \['attention_mask', 'input_ids'\] and .*'token_type_ids'\]; give all",
        ),
        (
            [{"input_ids": [[1, 2], [3]]}],
            r"input_ids of a batch is no tensor \(.*\); leave it out, or tokenise with padding=True",
        ),
        ([{"input_ids": [[1, 2]], "text": ["a"]}], r"text of a batch is no tensor \(.*\); leave it out"),
        (["a text"], "batch 0 has the type str; pass tokenised batches, such as those of kprune.draw"),
        ("a text", "the batches have the type str; pass tokenised batches"),
        (7, "the batches have the type int; pass tokenised batches"),
        ([], "the sample is empty"),
        ([{"input_ids": torch.ones(2, 4), "attention_mask": torch.zeros(2, 4)}], "the sample is empty: no batch has"),
    ],
)
def test_batches_of_the_wrong_form_are_refused(batches, message):
    with pytest.raises(BadSample, match=message):
        examples_of(batches)


@pytest.mark.parametrize("family", tiny.CORE_FAMILIES)
def test_inputs_fit_exactly_if_the_model_runs_on_them(family):
    model = tiny.tiny_model(family, "embedding")
    positions, vocabulary = max_positions(model.config), model.config.vocab_size
    for ids, message in (
        (torch.full((positions,), 7), ""),
        (
            torch.full((positions + 1,), 7),
            rf"has {positions + 1} tokens, but the model has {positions} positions; trunc",
        ),
        (torch.tensor([7, vocabulary - 1]), ""),
        (torch.tensor([7, vocabulary]), rf"has the token {vocabulary}, but .* tokens 0 to {vocabulary - 1}; use the"),
        (torch.tensor([7, -1]), "has the token -1"),
        (torch.tensor([7.0, 8.0]), "input_ids have the type torch.float32, not integers; pass the tokenizer's output"),
    ):
        if not message:
            require_fit([{"input_ids": ids}], model.config)
            model(input_ids=ids[None])
            continue
        with pytest.raises(BadSample, match=message):
            require_fit([{"input_ids": ids}], model.config)
        with pytest.raises((IndexError, RuntimeError)):
            model(input_ids=ids[None])


@pytest.mark.parametrize("segment", [-1, 2])
def test_a_segment_without_an_embedding_is_refused(segment):
    batch = tiny.batched(tiny.texts(4))[0]
    batch["token_type_ids"] = torch.full_like(batch["input_ids"], 1)
    examples = examples_of([batch])
    require_fit(examples, tiny.tiny_config("bert"))
    require_fit(examples, tiny.tiny_config("distilbert"))  # has no segments, and ignores them
    examples[0]["token_type_ids"][0] = segment
    with pytest.raises(BadSample, match=rf"have the segment {segment}, but the model has segments 0 to 1"):
        require_fit(examples, tiny.tiny_config("bert"))
