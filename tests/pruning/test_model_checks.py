"""Models that cannot be pruned are refused with one sentence; torch's modes do not change a result."""

import pytest
import tiny
import torch
from torch import nn

import kprune
from kprune.errors import UnsupportedModel
from kprune.pruning.model_checks import require_prunable

BATCHES = tiny.batched(tiny.texts(64))


def on_meta(family):
    with torch.device("meta"):
        return tiny.HEADS["classification"][0].from_config(tiny.tiny_config(family))


def one_module(family):
    model = tiny.tiny_model(family)
    layers = model.base_model.get_submodule("transformer.layer" if family == "distilbert" else "encoder.layer")
    layers[1] = layers[0]
    return model


def one_weight(family):
    model = tiny.tiny_model(family)
    consumers = [module for name, module in model.base_model.named_modules() if name.endswith(("output.dense", "lin2"))]
    consumers[-1].weight = consumers[-3 if family != "distilbert" else -2].weight
    return model


def one_memory(family):
    model = tiny.tiny_model(family)
    linears = [m for m in model.base_model.modules() if isinstance(m, nn.Linear) and m.weight.shape == (48, 32)]
    linears[2].weight = nn.Parameter(linears[0].weight.data)
    return model


def fewer_layers(family):
    model = tiny.tiny_model(family)
    del model.base_model.get_submodule("transformer.layer" if family == "distilbert" else "encoder.layer")[-1]
    return model


def in_chunks(family):
    return tiny.tiny_model(family, chunk_size_feed_forward=2)


def flex_attention(family):
    model = tiny.tiny_model(family)
    model.config._attn_implementation = "flex_attention"
    return model


REFUSED = {
    on_meta: r"is on the meta device and has no values; load the model with from_pretrained",
    one_module: r"layer\.0\..* and .*layer\.1\..* are one weight, .*; give each layer its own copy",
    one_weight: r"are one weight, and kprune prunes each layer on its own; give each layer its own copy",
    one_memory: r"layer\.0\..* and .*layer\.2\..* are one weight",
    fewer_layers: r"the model has 2 layers, and its config declares 3; set config.num_hidden_layers to 2",
    in_chunks: r"chunk_size_feed_forward is 2, .*; load the model with chunk_size_feed_forward=0",
    flex_attention: r"implementation is 'flex_attention', .*; load the model with attn_implementation='sdpa'",
}


@pytest.mark.parametrize("family", ["bert", "distilbert"])
@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_a_model_that_cannot_be_pruned_is_refused(make, family):
    with pytest.raises(UnsupportedModel, match=REFUSED[make]) as refused:
        kprune.prune(make(family), BATCHES, reduction=0.5)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("family", "kind"), tiny.ALL_CASES)
def test_ordinary_models_are_accepted(family, kind):
    require_prunable(tiny.tiny_model(family, kind))


def test_a_pruned_model_with_emptied_layers_is_accepted():
    pruned = kprune.prune(tiny.tiny_model(), BATCHES, reduction=0.85, align=1)
    assert any(not step.kept for step in pruned.steps)
    require_prunable(pruned.model)


def weights_of(pruned):
    return {name: tensor.clone() for name, tensor in pruned.model.state_dict().items()}


def require_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def expected():
    return weights_of(kprune.prune(tiny.tiny_model(), BATCHES, reduction=0.5))


@pytest.mark.parametrize(
    "mode",
    [lambda: torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode, torch.no_grad],
    ids=["autocast", "inference mode", "no_grad"],
)
def test_the_surrounding_mode_does_not_change_the_result(mode, expected):
    model = tiny.tiny_model()
    with mode():
        one_call = kprune.prune(model, BATCHES, reduction=0.5)
        pruner = kprune.Pruner(model, BATCHES)
        pruner.preview(0.5)
        several = pruner.prune(0.5)
    require_equal(weights_of(one_call), expected)
    require_equal(weights_of(several), expected)


def test_tensors_made_in_inference_mode_are_copied(expected):
    with torch.inference_mode():
        model = tiny.tiny_model()
        batches = [{name: value.clone() for name, value in batch.items()} for batch in BATCHES]
    assert next(model.parameters()).is_inference()
    assert batches[0]["input_ids"].is_inference()
    pruned = kprune.prune(model, batches, reduction=0.5)
    require_equal(weights_of(pruned), expected)
    assert not any(parameter.is_inference() for parameter in pruned.model.parameters())


def test_the_repr_of_a_result_is_one_line():
    pruned = kprune.prune(tiny.tiny_model(), BATCHES, reduction=0.5)
    before, after = pruned.parameters
    assert repr(pruned) == (
        f"Pruned(BertForSequenceClassification, 3 layers, {pruned.reduction:.1%} of FLOPs removed, "
        f"{after:,} of {before:,} parameters left)"
    )
