"""The canonical form of models that were pruned, trained and pruned again."""

import torch
import zoo

from kprune import prune
from kprune.models.sublayer import find


def test_a_pruned_dinov2_that_was_trained_is_pruned_again(tmp_path):
    model = zoo.build("dinov2")
    batches = zoo.batches(model, count=8)
    small = prune(model, batches, reduction=0.9, align=1, ridge=1e-2).model
    assert any(not sublayer.units for sublayer in find(small))
    with torch.no_grad():
        for layer in small.base_model.encoder.layer:
            layer.layer_scale2.lambda1.mul_(1.01)
    again = prune(small, batches, reduction=0.1, align=1, ridge=1e-2).model
    again.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(**batches[0]).logits, again(**batches[0]).logits)


def test_a_float16_t5_may_get_biases():
    """transformers keeps some of T5's weights in float32: a bias has the type of its weight."""
    model = zoo.build("t5").half()
    model.encoder.block[0].layer[1].DenseReluDense.wo.float()
    small = prune(model, zoo.batches(model, count=8), reduction=0.4, align=1, ridge=1e-2, bias=True).model
    for sublayer in find(small):
        if sublayer.units and sublayer.consumer.bias is not None:
            assert sublayer.consumer.bias.dtype == sublayer.consumer.weight.dtype
