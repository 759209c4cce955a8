"""A refit needs as many different tokens as it has features; repetitions add nothing."""

import logging

import pytest
import tiny
import torch
import zoo
from transformers import PreTrainedModel

from kprune import KpruneError, PruneConfig, prune
from kprune.models.outputs import kind_of
from kprune.models.sublayer import find
from kprune.pruning.sampling import sample_for

FEATURES = 48
"""Of the tiny model's widest sublayer."""


def rank_of_features(model: PreTrainedModel, batches) -> int:
    """The largest rank of any sublayer's features on the real tokens."""
    read: dict[int, list[torch.Tensor]] = {}
    for number, sublayer in enumerate(find(model)):
        sublayer.consumer.register_forward_pre_hook(
            lambda _, inputs, number=number: read.setdefault(number, []).append(inputs[0])
        )
    with torch.no_grad():
        for batch in batches:
            model(**batch)
    masks = [batch["attention_mask"].bool() for batch in batches]
    features = [
        torch.cat([part[mask] for part, mask in zip(parts, masks, strict=True)]).double() for parts in read.values()
    ]
    return max(int(torch.linalg.matrix_rank(each, rtol=1e-5)) for each in features)


@pytest.mark.parametrize(("examples", "times"), [(1, 40), (3, 20), (2, 1), (20, 1)])
def test_the_rank_of_the_features_is_at_most_the_distinct_tokens(examples, times):
    inputs = tiny.texts(examples, shortest=8, longest=12)
    batches = tiny.batched(inputs * times)
    model = tiny.tiny_model()
    sample = sample_for(model, kind_of(model), batches, PruneConfig())
    assert (sample.distinct_examples, sample.examples) == (examples, examples * times)
    assert sample.distinct_tokens == sum(map(len, inputs))
    assert rank_of_features(model, batches) <= sample.distinct_tokens


def test_repeated_examples_are_refused_unless_a_ridge_is_given(caplog):
    inputs = tiny.texts(2, shortest=10, longest=10)
    many = tiny.batched(inputs * 50)
    message = (
        r"the sample has 1000 tokens, but only 20 in different examples \(2 of 100\), and the refit of 48 features "
        r"needs at least as many: add 28 other tokens or more \(100,000 are usual\), or a ridge of 0.0001 or more"
    )
    for ridge in (None, 1e-9):
        with pytest.raises(KpruneError, match=message):
            prune(tiny.tiny_model(), many, reduction=0.5, ridge=ridge)
    assert prune(tiny.tiny_model(), many, reduction=0.5, ridge=0.01).reduction >= 0.5
    assert "20 tokens are few for the refit of 48 features" in caplog.text
    assert "only 2 of 100 examples are different: repetitions add nothing; use other text" in caplog.text


def test_masking_does_not_make_repetitions_different():
    (ids,) = tiny.texts(1, shortest=16, longest=16)
    chosen = torch.rand(60, 16, generator=torch.Generator().manual_seed(0)) < 0.15
    whole = ids.expand(60, 16)
    batch = {"input_ids": whole.masked_fill(chosen, 4), "labels": whole.masked_fill(~chosen, -100)}
    with pytest.raises(KpruneError, match=r"only 16 in different examples \(1 of 60\)"):
        prune(tiny.tiny_model("bert", "masked language model"), [batch], reduction=0.5)


@pytest.mark.parametrize(
    ("examples", "times", "warnings"),
    [
        (40, 1, []),  # 400 tokens
        (40, 2, []),  # half of the examples are repeated
        (40, 3, ["only 40 of 120 examples are different"]),
        (15, 1, ["150 tokens in different examples are few for the refit of 48 features: use 192 or more"]),
        (15, 3, ["150 tokens in different examples are few", "only 15 of 45 examples are different"]),
    ],
)
def test_a_poor_sample_gets_a_warning_with_the_figure(examples, times, warnings, caplog):
    inputs = tiny.texts(examples, shortest=10, longest=10)
    with caplog.at_level(logging.WARNING):
        prune(tiny.tiny_model(), tiny.batched(inputs * times), reduction=0.5)
    found = [record.getMessage() for record in caplog.records if "different" in record.getMessage()]
    assert len(found) == len(warnings)
    assert all(message.startswith(start) for message, start in zip(found, warnings, strict=True))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.full((4, 20), 99), "the text has the token 99, but the model's embedding has tokens 0 to 98; use"),
        (torch.full((4, 67), 7), "an input has 67 tokens, but the model has 66 positions; truncate inputs at max_len"),
    ],
)
def test_inputs_that_do_not_fit_the_model_are_refused(ids, message):
    with pytest.raises(KpruneError, match=message):
        prune(tiny.tiny_model(), [{"input_ids": ids}], reduction=0.5)


def test_lengths_of_sounds_do_not_depend_on_layer_drop():
    model = zoo.build("wav2vec2", layerdrop=0.9).train()
    for _ in range(3):
        assert prune(model, zoo.batches(model, count=4), reduction=0.3, align=1, ridge=1e-2).examples == 24


def test_images_may_be_bfloat16():
    model = zoo.build("vit").bfloat16()
    batches = [{name: value.bfloat16() for name, value in batch.items()} for batch in zoo.batches(model, count=4)]
    assert prune(model, batches, reduction=0.3, align=1, ridge=1e-2).examples == 24
