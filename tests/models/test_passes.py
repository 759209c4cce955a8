import pytest
import tiny
import torch

from kprune.models.passes import (
    advance,
    call,
    embed,
    forward,
    forward_and_top,
    pass_attention,
    pass_layer,
    replayed,
    watch,
)
from kprune.models.resize import shrink
from kprune.models.sublayer import find

BATCHES = tiny.sample_of(tiny.texts()).batches


def state_of(model):
    """Modules, hooks and replaced forwards: passes leave all of them as they were."""
    return [
        (id(m), list(m._forward_hooks), list(m._forward_pre_hooks), "forward" in m.__dict__) for m in model.modules()
    ]


def halve(model):
    for sublayer in find(model):
        shrink(sublayer, torch.arange(sublayer.units) % 2 > 0)


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
def test_a_pass_may_start_at_any_layer(family):
    model = tiny.tiny_model(family)
    state, batch = state_of(model), BATCHES[-1]
    with torch.no_grad():
        expected = model(**batch.inputs).logits
        stream = embed(model, batch)
        for layer in range(3):
            assert torch.equal(forward(model, batch, start=layer, stream=stream).logits, expected)
            stream = advance(model, batch, layer, stream)
        assert torch.equal(forward(model, batch, start=3, stream=stream).logits, expected)
        assert torch.equal(forward_and_top(model, batch)[1], stream)
        assert torch.equal(model(**batch.inputs).logits, expected)
    assert state_of(model) == state


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *((f, "classification") for f in tiny.CORE_FAMILIES),
        *((f, k) for f in tiny.SEAM_FAMILIES for k in tiny.SEAM_KINDS),
    ],
)
@pytest.mark.parametrize("change", ["dense", "half of the units", "emptied"])
def test_a_pass_may_start_between_attention_and_ffn(family, kind, change):
    model = tiny.tiny_model(family, kind)
    if change == "half of the units":
        halve(model)
    elif change == "emptied":
        for sublayer in find(model)[1:3]:
            shrink(sublayer, torch.zeros(sublayer.units, dtype=torch.bool))
    state = state_of(model)
    with torch.no_grad():
        for batch in BATCHES[:2]:
            expected = model(**batch.inputs)[0]
            stream = embed(model, batch)
            for ffn in find(model)[1::2]:
                midway = pass_attention(model, ffn, batch, stream)
                outputs, _ = forward_and_top(model, batch, start=ffn.index, stream=midway, at_ffn=True)
                assert torch.equal(outputs[0], expected)
                after = advance(model, batch, ffn.index, midway, at_ffn=True)
                assert torch.equal(after, advance(model, batch, ffn.index, stream))
                stream = after
    assert state_of(model) == state


def test_a_local_window_is_shorter_than_the_texts():
    """ModernBERT: a token further away than half of the window changes nothing in a local layer."""
    model = tiny.tiny_model("modernbert", "embedding")
    reach = model.config.local_attention // 2
    batch = max(BATCHES, key=lambda batch: batch.mask.shape[1])
    assert model.config.layer_types == ["full_attention", "sliding_attention", "sliding_attention"]
    assert batch.mask.shape[1] > model.config.local_attention
    with torch.no_grad():
        stream = embed(model, batch)
        changed = stream.clone()
        changed[:, 0] += 1.0
        for layer, is_global in enumerate([True, False, False]):
            difference = (advance(model, batch, layer, stream) - advance(model, batch, layer, changed)).abs().amax(-1)
            assert difference[:, 1 : reach + 1].amax() > 0
            assert bool(difference[:, reach + 1 :].any()) == is_global


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
def test_watching_shows_the_stream_and_the_features(family):
    model = tiny.tiny_model(family)
    batch = BATCHES[0]
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
        if family in tiny.POST_NORM:  # post-norm: the FFN reads the normalised stream after the attention
            norms = [module for module in attention.layer.modules() if isinstance(module, torch.nn.LayerNorm)]
            torch.testing.assert_close(read.stream, norms[0](after_attention), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(after[batch.mask], norms[1](after_ffn), rtol=1e-4, atol=1e-5)
        else:  # pre-norm: the sums are the stream itself
            torch.testing.assert_close(read.stream, after_attention)
            torch.testing.assert_close(after[batch.mask], after_ffn)


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
def test_features_need_not_be_made_again(family):
    model = tiny.tiny_model(family)
    attention, ffn = find(model)[2:4]
    halve(model)
    state = state_of(model)
    with torch.no_grad():
        for batch in BATCHES[:2]:
            stream = advance(model, batch, 0, embed(model, batch))
            midway, after = pass_attention(model, ffn, batch, stream), advance(model, batch, 1, stream)
            of_heads = watch(model, attention, batch, stream).consumer_input
            of_neurons = watch(model, ffn, batch, midway).consumer_input
            with replayed(attention, of_heads):
                assert torch.equal(pass_attention(model, ffn, batch, stream), midway)
            with replayed(ffn, of_neurons):
                assert torch.equal(advance(model, batch, 1, midway, at_ffn=True), after)
            with replayed(attention, torch.zeros_like(of_heads)):
                assert not torch.equal(pass_attention(model, ffn, batch, stream), midway)
            with replayed(ffn, torch.zeros_like(of_neurons)):
                assert not torch.equal(advance(model, batch, 1, midway, at_ffn=True), after)
    assert state_of(model) == state


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_decoders_run_without_a_cache(family):
    model = tiny.tiny_model(family)
    with torch.no_grad():
        assert call(model, BATCHES[0]).past_key_values is None
        assert model(**BATCHES[0].inputs).past_key_values is not None
