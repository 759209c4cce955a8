import pytest
import tiny
import torch

from kprune.observe import (
    _first_features,
    advance,
    embed,
    forward,
    forward_and_top,
    gradients,
    masked,
    pass_attention,
    pass_layer,
    replayed,
    watch,
)
from kprune.sublayer import find, shrink


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
def test_a_pass_may_start_at_any_layer(family):
    model = tiny.tiny_model(family)
    batch = tiny.sample_of(tiny.texts()).batches[-1]
    with torch.no_grad():
        expected = model(**batch.inputs).logits
        stream = embed(model, batch)
        for layer in range(3):
            assert torch.equal(forward(model, batch, start=layer, stream=stream).logits, expected)
            stream = advance(model, batch, layer, stream)
        assert torch.equal(forward(model, batch, start=3, stream=stream).logits, expected)
        assert torch.equal(model(**batch.inputs).logits, expected)


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
def test_gradients_are_those_of_a_mask_of_each_examples_own(family):
    model = tiny.tiny_model(family).requires_grad_(False)
    batch = tiny.sample_of(tiny.texts()).batches[-1]
    sublayers = find(model)
    examples = len(batch.example)
    masks = {s: torch.ones(examples, 1, s.units, requires_grad=True) for s in sublayers}
    with masked(masks):
        model(**batch.inputs).logits.square().sum().backward()

    felt = {}

    def feel(sublayer, features, gradient):
        felt[sublayer] = (features * gradient).sum(1).unflatten(1, (-1, sublayer.width)).sum(2)

    with gradients(sublayers, feel):
        forward(model, batch).logits.square().sum().backward()
    for sublayer in sublayers:
        torch.testing.assert_close(felt[sublayer], masks[sublayer].grad[:, 0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
def test_watching_shows_the_stream_and_the_features(family):
    model = tiny.tiny_model(family)
    batch = tiny.sample_of(tiny.texts()).batches[0]
    attention, ffn = find(model)[2:4]
    with torch.no_grad():
        stream = advance(model, batch, 0, embed(model, batch))
        seen = watch(model, attention, batch, stream)
        assert torch.equal(seen.stream, stream[batch.mask])
        read = watch(model, ffn, batch, pass_attention(model, ffn, batch, stream))
        (after_attention, after_ffn), after = pass_layer(model, [attention, ffn], batch, stream)
        assert torch.equal(after, advance(model, batch, 1, stream))
        torch.testing.assert_close(after_attention, seen.stream + attention.consumer(seen.features))
        torch.testing.assert_close(after_ffn, read.stream + ffn.consumer(read.features))
        # Post-norm: what the feed-forward block reads is the normalised stream after the attention.
        norms = [module for module in attention.layer.modules() if isinstance(module, torch.nn.LayerNorm)]
        torch.testing.assert_close(read.stream, norms[0](after_attention), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(after[batch.mask], norms[1](after_ffn), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
def test_a_pass_may_start_between_attention_and_ffn(family):
    model = tiny.tiny_model(family)
    modules = [id(module) for module in model.modules()]
    with torch.no_grad():
        for batch in tiny.sample_of(tiny.texts()).batches[:2]:
            expected = model(**batch.inputs).logits
            stream = embed(model, batch)
            for ffn in find(model)[1::2]:
                midway = pass_attention(model, ffn, batch, stream)
                outputs, _ = forward_and_top(model, batch, start=ffn.index, stream=midway, past_attention=True)
                assert torch.equal(outputs.logits, expected)
                stream = advance(model, batch, ffn.index, midway, past_attention=True)
    assert [id(module) for module in model.modules()] == modules


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
def test_features_need_not_be_made_again(family):
    model = tiny.tiny_model(family)
    attention, ffn = find(model)[2:4]
    for sublayer in (attention, ffn):
        shrink(sublayer, torch.arange(sublayer.units) % 2 > 0)
    modules = [id(module) for module in model.modules()]
    with torch.no_grad():
        for batch in tiny.sample_of(tiny.texts()).batches[:2]:
            stream = advance(model, batch, 0, embed(model, batch))
            midway, after = pass_attention(model, ffn, batch, stream), advance(model, batch, 1, stream)
            of_heads = watch(model, attention, batch, stream).padded
            of_neurons = watch(model, ffn, batch, midway).padded
            with replayed(attention, of_heads):
                assert torch.equal(pass_attention(model, ffn, batch, stream), midway)
            with replayed(ffn, of_neurons):
                assert torch.equal(advance(model, batch, 1, midway, past_attention=True), after)
            with replayed(attention, torch.zeros_like(of_heads)):
                assert not torch.equal(pass_attention(model, ffn, batch, stream), midway)
            with replayed(ffn, torch.zeros_like(of_neurons)):
                assert not torch.equal(advance(model, batch, 1, midway, past_attention=True), after)
    assert [id(module) for module in model.modules()] == modules


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
def test_heads_make_of_first_tokens_what_the_model_makes(family, implementation):
    model = tiny.tiny_model(family)
    model.set_attn_implementation(implementation)
    attention = find(model)[4]
    shrink(attention, torch.arange(attention.units) > 0)
    batches = tiny.sample_of(tiny.texts()).batches
    assert any(batch.tokens is not None for batch in batches)
    with torch.no_grad():
        for batch in batches:
            stream = embed(model, batch)
            expected = watch(model, attention, batch, stream).padded[:, :1]
            torch.testing.assert_close(_first_features(attention, stream, batch), expected, rtol=1e-4, atol=1e-5)


def test_a_failing_pass_leaves_the_model_whole():
    model = tiny.tiny_model()
    batch = tiny.sample_of(tiny.texts()).batches[0]
    before = [id(module) for module in model.modules()]

    def explode(sublayer, features, gradient):
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"), gradients(find(model), explode):
        forward(model.requires_grad_(False), batch, start=1, stream=embed(model, batch)).logits.sum().backward()
    assert [id(module) for module in model.modules()] == before
    assert not any(module._forward_pre_hooks for module in model.modules())
