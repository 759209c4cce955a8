import copy

import pytest
import tiny
import torch

from kprune import KpruneError
from kprune.models.resize import shrink
from kprune.models.sublayer import BiasOnly, find


def test_a_wrapped_linear_is_refused_by_path():
    model = tiny.tiny_model()
    model.bert.encoder.layer[1].output.dense = torch.nn.Sequential()
    with pytest.raises(KpruneError, match=r"layer 1 ffn: output.dense is of type Sequential, not a plain .*; merge"):
        [sublayer.units for sublayer in find(model)]
    model = tiny.tiny_model()
    model.bert.encoder.layer[0].attention.self.key = torch.nn.Identity()
    with pytest.raises(KpruneError, match=r"layer 0 attention: attention.self.key is of type Identity"):
        find(model)[0].producers  # noqa: B018


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
def test_a_view_follows_its_layer(family):
    model = tiny.tiny_model(family)
    before, target = find(model), find(model)[1]
    shrink(target, torch.arange(48) < 5)
    assert (before[1].units, before[1].features, before[1].width) == (5, 5, 1)
    shrink(target, torch.zeros(5, dtype=torch.bool))
    assert (before[1].units, before[1].features) == (0, 0)
    # Another view of the same sublayer is not equal: views are keys of sums.
    assert find(model)[1] != before[1]
    assert [sublayer.name for sublayer in before[:2]] == ["layer 0 attention", "layer 0 ffn"]


@pytest.mark.parametrize("bias", [True, False])
def test_an_emptied_consumer_returns_its_bias(bias):
    linear = torch.nn.Linear(4, 3, bias=bias).double()
    empty = BiasOnly(copy.deepcopy(linear))
    expected = linear.bias if bias else torch.zeros(3, dtype=torch.float64)
    output = empty(torch.randn(2, 5, 3, dtype=torch.float64))
    assert torch.equal(output, expected.expand(2, 5, 3))
    assert output.is_contiguous()
    assert (empty.weight.shape, empty.in_features, empty.out_features) == ((3, 0), 0, 3)
    assert (empty.bias is not None) == bias


def test_an_emptied_consumer_without_a_bias_follows_device_and_dtype():
    consumer = BiasOnly(torch.nn.Linear(3, 4, bias=False, device="meta", dtype=torch.float16))
    assert consumer.weight.shape == (4, 0)
    assert (consumer.weight.device.type, consumer.weight.dtype) == ("meta", torch.float16)
    assert BiasOnly(torch.nn.Linear(3, 4, bias=False)).double().weight.dtype == torch.float64
    assert list(BiasOnly(torch.nn.Linear(3, 4, bias=False)).state_dict()) == []
