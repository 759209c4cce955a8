import pytest
import tiny
import torch
from torch.utils.flop_counter import FlopCounterMode

from kprune.models.first_token import first_token_only
from kprune.models.hooks import on_feature_grad, on_features, on_output_grad
from kprune.models.passes import forward
from kprune.models.resize import shrink
from kprune.models.sublayer import find

BATCHES = tiny.sample_of(tiny.texts()).batches


@pytest.mark.parametrize("family", tiny.CORE_FAMILIES)
@pytest.mark.parametrize(("emptied", "implementation"), [(None, "sdpa"), (None, "eager"), (4, "sdpa"), (5, "sdpa")])
def test_the_saving_changes_no_prediction_and_no_gradient(family, emptied, implementation):
    model = tiny.tiny_model(family, attn_implementation=implementation).requires_grad_(False)
    shrink(find(model)[4], torch.arange(4) > 0)
    if emptied:
        shrink(find(model)[emptied], torch.zeros(find(model)[emptied].units, dtype=torch.bool))
    sublayers = [sublayer for sublayer in find(model) if sublayer.units]
    assert any(batch.tokens is not None for batch in BATCHES)
    for batch in BATCHES[:2]:
        results, flops = [], []
        for narrowed in ([s for s in sublayers if s.index == 2], []):
            features, gradients = {}, {}

            def read(sublayer, values, features=features):
                features.setdefault(sublayer, values.detach())

            def keep(sublayer, values, gradient, gradients=gradients):
                gradients[sublayer] = (values * gradient).sum(1)

            with (
                FlopCounterMode(display=False) as counter,
                first_token_only(narrowed),
                on_features(sublayers, read),
                on_feature_grad(sublayers, keep),
            ):
                logits = forward(model, batch).logits
                logits.square().sum().backward()
            results.append((logits.detach(), features, gradients))
            flops.append(counter.get_total_flops())
        (logits, features, gradients), (full_logits, full_features, full_gradients) = results
        torch.testing.assert_close(logits, full_logits, rtol=1e-5, atol=1e-6)
        for sublayer in sublayers:
            torch.testing.assert_close(features[sublayer], full_features[sublayer], rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(gradients[sublayer], full_gradients[sublayer], rtol=1e-4, atol=1e-5)
        assert flops[0] < flops[1]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("family", tiny.CORE_FAMILIES)
def test_output_gradients_are_zero_except_at_first_tokens(family):
    model = tiny.tiny_model(family).requires_grad_(False)
    top = find(model)[4:]
    batch = BATCHES[0]
    for narrowed in (top, []):
        seen = {}
        with (
            first_token_only(narrowed),
            on_output_grad(top, lambda s, features, gradient, seen=seen: seen.update({s: (features, gradient)})),
        ):
            forward(model, batch).logits.square().sum().backward()
        for features, gradient in seen.values():
            assert features.shape[:2] == gradient.shape[:2] == batch.mask.shape
            assert gradient[:, 0].abs().amax(-1).gt(0).all()
            assert not gradient[:, 1:].any()
