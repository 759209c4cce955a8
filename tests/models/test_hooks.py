import pytest
import tiny
import torch

from kprune.models.hooks import by_example, forward_as, masked, on_feature_grad, on_features, on_output_grad
from kprune.models.passes import embed, forward
from kprune.models.sublayer import find


def some_batch():
    return tiny.sample_of(tiny.texts()).batches[-1]


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
def test_gradients_are_those_of_a_mask_of_each_examples_own(family):
    model = tiny.tiny_model(family).requires_grad_(False)
    batch = some_batch()
    sublayers, shape = find(model), batch.mask.shape
    masks = {s: torch.ones(len(batch.example), 1, s.units, requires_grad=True) for s in sublayers}
    with masked(masks, shape):
        model(**batch.inputs).logits.square().sum().backward()

    gradients = {}

    def keep(sublayer, features, gradient):
        gradients[sublayer] = (features * gradient).sum(1).unflatten(1, (-1, sublayer.width)).sum(2)

    with on_feature_grad(sublayers, keep, shape):
        forward(model, batch).logits.square().sum().backward()
    for sublayer in sublayers:
        torch.testing.assert_close(gradients[sublayer], masks[sublayer].grad[:, 0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
def test_the_gradients_of_outputs_are_those_of_biases_token_by_token(family):
    model = tiny.tiny_model(family)
    inputs = tiny.batched(tiny.texts(64))[0]
    sublayers = find(model)
    for sublayer in sublayers:  # families without biases get one, to be compared with
        consumer = sublayer.consumer
        consumer.bias = consumer.bias if consumer.bias is not None else torch.nn.Parameter(torch.zeros(32))
    seen = {}

    def keep(sublayer, features, gradient):
        assert gradient.shape == (*inputs["input_ids"].shape, 32)
        seen[sublayer] = features.shape, gradient.sum((0, 1))

    with on_output_grad(sublayers, keep, inputs["input_ids"].shape):
        model(**inputs).logits.square().sum().backward()
    assert list(seen) == sublayers[::-1]
    for sublayer, (shape, gradient) in seen.items():
        assert shape == (*inputs["input_ids"].shape, sublayer.features)
        torch.testing.assert_close(gradient, sublayer.consumer.bias.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
def test_features_come_by_example_and_may_be_replaced(family):
    model, batch = tiny.tiny_model(family), some_batch()
    sublayers = find(model)
    shapes = {}

    def keep(sublayer, features):
        shapes[sublayer] = features.shape

    with torch.no_grad():
        expected = model(**batch.inputs).logits
        with on_features(sublayers, keep, batch.mask.shape):
            assert torch.equal(model(**batch.inputs).logits, expected)
        assert shapes == {s: (*batch.mask.shape, s.features) for s in sublayers}
        with on_features(sublayers, lambda sublayer, features: features.clone(), batch.mask.shape):
            assert torch.equal(model(**batch.inputs).logits, expected)
        with on_features(sublayers, lambda sublayer, features: 2.0 * features, batch.mask.shape):
            assert not torch.equal(model(**batch.inputs).logits, expected)


def test_a_failing_pass_leaves_the_model_whole():
    model = tiny.tiny_model()
    batch = tiny.sample_of(tiny.texts()).batches[0]
    before = [id(module) for module in model.modules()]

    def explode(sublayer, features, gradient):
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"), on_feature_grad(find(model), explode):
        forward(model.requires_grad_(False), batch, start=1, stream=embed(model, batch)).logits.sum().backward()
    assert [id(module) for module in model.modules()] == before
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_a_replaced_forward_comes_back_also_if_contexts_are_nested():
    module = torch.nn.Linear(2, 2)
    with forward_as(module, lambda x: "outer"):
        with pytest.raises(ZeroDivisionError), forward_as(module, lambda x: 1 / 0):
            module(None)
        assert module(None) == "outer"
    assert "forward" not in module.__dict__
    assert module(torch.ones(1, 2)).shape == (1, 2)


def test_flattened_tokens_get_their_examples_back():
    flat = torch.arange(24.0).view(6, 4)
    assert torch.equal(by_example(flat, (2, 3)), flat.view(2, 3, 4))
    assert by_example(flat.view(2, 3, 4), (2, 3)).shape == (2, 3, 4)
    assert by_example(flat, None) is flat
