"""`bias=True`: K-prune fits biases to consumers that have none."""

import pytest
import tiny
import torch
import zoo
from transformers import AutoModelForCausalLM

import kprune
from kprune import Pruner, prune
from kprune.models.sublayer import find

BATCHES = tiny.batched(tiny.texts(64))


def llama(**changes):
    return tiny.tiny_model("llama", **changes)


def with_zero_biases():
    """The tiny Llama, as one whose config asks for biases, all zero."""
    model = llama(attention_bias=True, mlp_bias=True)
    model.load_state_dict(llama().state_dict(), strict=False)
    for name, value in model.state_dict().items():
        if name.endswith(".bias"):
            value.zero_()
    return model


@pytest.mark.parametrize("criterion", ["compensated", "fisher"])
def test_a_model_is_pruned_as_if_it_had_biases_of_zero(criterion):
    options = {"reduction": 0.5, "criterion": criterion, "ridge": 1e-4, "align": 1}
    found = prune(llama(), BATCHES, bias=True, **options)
    expected = prune(with_zero_biases(), BATCHES, **options)
    assert [step.kept for step in found.steps] == [step.kept for step in expected.steps]
    for ours, theirs in zip(find(found.model), find(expected.model), strict=True):
        torch.testing.assert_close(ours.consumer.weight, theirs.consumer.weight, rtol=1e-3, atol=1e-4)
        if ours.consumer.bias is None:
            assert not theirs.consumer.bias.any()
        else:
            torch.testing.assert_close(ours.consumer.bias, theirs.consumer.bias, rtol=1e-3, atol=1e-4)
    assert any(sublayer.has_added_bias for sublayer in find(found.model))


def test_a_bias_lowers_the_error_and_without_it_nothing_is_added():
    pruner = Pruner(llama(), BATCHES, criterion="fisher", ridge=1e-4, align=1)  # the scores do not depend on the bias
    plain, biased = pruner.prune(0.5), pruner.with_config(bias=True).prune(0.5)
    first = next(number for number, step in enumerate(plain.steps) if len(step.kept) < step.units)
    assert plain.steps[first].kept == biased.steps[first].kept
    assert biased.steps[first].error_after < plain.steps[first].error_after
    assert not any(sublayer.has_added_bias for sublayer in find(plain.model))
    assert "biased" not in plain.model.config.quantization_config
    assert all(sublayer.consumer.bias is None for sublayer in find(pruner.model))


def test_nothing_removed_is_nothing_added():
    model = llama()
    pruned = prune(model, BATCHES, reduction=0.0, bias=True)
    assert getattr(pruned.model.config, "quantization_config", None) is None
    assert pruned.model.state_dict().keys() == model.state_dict().keys()
    assert tiny.same_outputs(model, pruned.model, BATCHES[0])


@pytest.mark.parametrize("name", zoo.marked(zoo.DECODERS))
def test_a_decoder_with_fitted_biases_is_saved_loaded_and_pruned_again(name, tmp_path):
    zoo.build(name, "causal language model").save_pretrained(tmp_path / "dense")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "dense", dtype=torch.bfloat16)
    batches = zoo.batches(model, count=3)
    pruned = prune(model, batches, reduction=0.4, bias=True, ridge=1e-2, align=1)
    assert {parameter.dtype for parameter in pruned.model.parameters()} == {torch.bfloat16}
    assert all(parameter.requires_grad for parameter in pruned.model.parameters())
    kprune.save(pruned, tmp_path / "small")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    assert tiny.same_outputs(pruned.model, loaded, batches[0])
    again = prune(loaded, batches, reduction=0.3, ridge=1e-2, align=1)
    kept = [sublayer.has_added_bias for sublayer in find(again.model)]
    assert kept == [sublayer.has_added_bias for sublayer in find(pruned.model)]
    assert any(kept) == ("biased" in again.model.config.quantization_config)
