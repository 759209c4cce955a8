import pytest
import tiny
import torch
from transformers import T5Config, T5ForConditionalGeneration

from kprune import KpruneError, prune
from kprune.families import FAMILIES
from kprune.outputs import kind_of
from kprune.record import dense_units
from kprune.sublayer import find


def test_every_family_has_a_tiny_model():
    assert set(tiny.CONFIGS) == set(FAMILIES)


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
@pytest.mark.parametrize("kind", tiny.KIND_NAMES)
def test_paths_lead_to_the_units_that_the_config_counts(family, kind):
    model = tiny.tiny_model(family, kind)
    assert kind_of(model).name == kind
    sublayers = find(model)
    assert [(s.index, s.kind) for s in sublayers] == [(i, k) for i in range(3) for k in ("attention", "ffn")]
    for sublayer in sublayers:
        assert sublayer.units == dense_units(model.config)[sublayer.kind]
        assert sublayer.features == {"attention": 32, "ffn": 48}[sublayer.kind]


def test_an_unsupported_model_is_refused_by_name():
    model = T5ForConditionalGeneration(T5Config(vocab_size=9, d_model=8, d_ff=8, num_layers=1, num_heads=2, d_kv=4))
    with pytest.raises(KpruneError, match=r"cannot prune a 't5' model; supported: bert, .*docs/new-family.md"):
        prune(model, tiny.batched(tiny.texts()), reduction=0.5)


def test_a_decoder_is_refused():
    with pytest.raises(KpruneError, match="is_decoder"):
        find(tiny.tiny_model("bert", "embedding", is_decoder=True))


def test_what_is_not_a_transformers_model_is_refused():
    with pytest.raises(KpruneError, match="cannot prune a Linear"):
        prune(torch.nn.Linear(2, 2), [], reduction=0.5)


def test_a_wrapped_linear_is_refused_by_path():
    model = tiny.tiny_model()
    model.bert.encoder.layer[1].output.dense = torch.nn.Sequential()
    with pytest.raises(KpruneError, match=r"layer 1 ffn: output.dense is a Sequential"):
        [sublayer.units for sublayer in find(model)]
