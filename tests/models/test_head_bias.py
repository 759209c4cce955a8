"""MPNet's position bias has a column per dense head; each layer reads those of the heads that it kept."""

import copy
import pickle

import pytest
import tiny
import torch

from kprune import prune
from kprune.errors import BadCheckpoint
from kprune.models.head_bias import keep_heads, kept_heads
from kprune.models.pruned_shape import apply, check, describe
from kprune.models.resize import keep_first, shrink
from kprune.models.sublayer import find

BATCHES = tiny.batched(tiny.texts(64))


def heads_of(model):
    return [kept_heads(sublayer) for sublayer in find(model)[::2]]


def test_the_bias_of_other_heads_gives_other_outputs():
    """The oracle of removing = masking is worth something only if columns differ."""
    right, wrong = tiny.tiny_model("mpnet", "embedding"), tiny.tiny_model("mpnet", "embedding")
    for model in (right, wrong):
        shrink(find(model)[0], torch.tensor([False, True, False, True]))
    keep_heads(find(wrong)[0], [0, 1])
    with torch.no_grad():
        gap = (right(**BATCHES[0])[0] - wrong(**BATCHES[0])[0]).abs().max()
    assert gap > 1e-2


def test_heads_keep_their_numbers_through_two_removals_and_copies():
    model = tiny.tiny_model("mpnet", "embedding")
    once = copy.deepcopy(model)
    shrink(find(once)[0], torch.tensor([False, True, True, True]))
    twice = copy.deepcopy(once)
    shrink(find(twice)[0], torch.tensor([True, False, True]))
    keep_first(find(twice)[2], 2)
    assert heads_of(model)[0] == [0, 1, 2, 3]
    assert heads_of(once)[0] == [1, 2, 3]
    assert heads_of(twice)[:2] == [[1, 3], [0, 1]]
    direct = copy.deepcopy(model)
    shrink(find(direct)[0], torch.tensor([False, True, False, True]))
    shrink(find(direct)[2], torch.tensor([True, True, False, False]))
    assert tiny.same_outputs(twice, direct, BATCHES[0])
    assert tiny.same_outputs(twice, pickle.loads(pickle.dumps(twice)), BATCHES[0])


@pytest.mark.parametrize("reductions", [(0.4, 0.4), (0.3, 0.2)])
def test_a_model_that_was_pruned_twice_is_loaded(reductions, tmp_path):
    model = tiny.tiny_model("mpnet")
    for reduction in reductions:
        model = prune(model, BATCHES, reduction=reduction).model
    assert heads_of(model) != [list(range(len(heads))) for heads in heads_of(model)], "only first heads: too easy"
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert heads_of(loaded) == heads_of(model) == model.config.quantization_config["kept_heads"]
    assert tiny.same_outputs(model, loaded, BATCHES[0])
    half = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert heads_of(half) == heads_of(model)


def test_other_families_record_no_heads():
    model = tiny.tiny_model("bert")
    shrink(find(model)[0], torch.tensor([False, True, False, True]))
    assert "kept_heads" not in describe(model, [])


@pytest.mark.parametrize("heads", [None, [[1, 3]], "13", [[1], [0, 1, 2, 3], []], [[3, 1], [0, 1, 2, 3], []]])
def test_heads_that_do_not_fit_the_record_are_refused(heads):
    model = tiny.tiny_model("mpnet")
    shrink(find(model)[0], torch.tensor([False, True, False, True]))
    keep_first(find(model)[4], 0)
    record = describe(model, [])
    assert record["kept_heads"] == [[1, 3], [0, 1, 2, 3], []]
    check(record, model.config)
    with pytest.raises(BadCheckpoint, match="kept_heads"):
        apply({**record, "kept_heads": heads}, tiny.tiny_model("mpnet"))
