import pytest
import tiny
import torch
import zoo
from transformers import AlbertConfig, AlbertModel, AutoConfig, MarianConfig, MarianModel

from kprune import KpruneError, prune
from kprune.errors import UnsupportedModel
from kprune.models.families import FAMILIES, REFUSED, family_of, max_positions
from kprune.models.outputs import kind_of
from kprune.models.pruned_shape import dense_units
from kprune.models.sublayer import find


def test_every_family_has_a_tiny_model():
    assert {name.partition("/")[0] for name in zoo.ZOO} == set(FAMILIES)
    assert set(tiny.ALL_FAMILIES) <= set(FAMILIES)
    assert not set(REFUSED) & set(FAMILIES)


@pytest.mark.parametrize(("family", "kind"), tiny.ALL_CASES)
def test_paths_lead_to_the_units_that_the_config_counts(family, kind):
    model = tiny.tiny_model(family, kind)
    assert kind_of(model).name == kind
    sublayers = find(model)
    assert [(s.index, s.kind) for s in sublayers] == [(i, k) for i in range(3) for k in ("attention", "ffn")]
    for sublayer in sublayers:
        assert sublayer.units == dense_units(model.config)[sublayer.kind]
        assert sublayer.features == {"attention": 32, "ffn": 48}[sublayer.kind]
        # Every entry of every projection belongs to a unit, with nothing left over.
        for producer, stacked in zip(sublayer.producers, sublayer.block.producers.values(), strict=True):
            assert producer.out_features % (stacked * sublayer.units) == 0
        entries = sum(linear.weight.numel() for linear in (*sublayer.producers, sublayer.consumer))
        assert sublayer.weights_per_unit * sublayer.units == entries


def test_a_unit_of_grouped_queries_is_a_key_value_head():
    attention, ffn = find(tiny.tiny_model("llama"))[:2]
    assert (attention.units, attention.width) == (2, 16)  # two query heads of 8 features read each key/value head
    assert [linear.out_features for linear in attention.producers] == [32, 16, 16]
    assert attention.weights_per_unit == 32 * (16 + 8 + 8 + 16)
    assert ffn.weights_per_unit == 3 * 32  # gate, up and down


def test_an_unsupported_model_is_refused_by_name():
    sizes = {"vocab_size": 9, "d_model": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 8}
    model = MarianModel(MarianConfig(**sizes, decoder_layers=1, decoder_attention_heads=2, pad_token_id=0))
    with pytest.raises(
        KpruneError, match=r"cannot prune a 'marian' model; supported: bert, .*docs/new-family.md"
    ) as raised:
        find(model)
    assert f"; supported: {', '.join(sorted(FAMILIES))}. " in str(raised.value)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_family_says_why_and_what_to_use(name):
    with pytest.raises(UnsupportedModel, match=rf"cannot prune an? '{name}' model: .+; (use|load) .+\."):
        family_of(AutoConfig.for_model(name))


def test_albert_is_refused_with_its_own_reason():
    sizes = {**tiny.SIZES, "embedding_size": 16, "vocab_size": 99}
    with pytest.raises(
        UnsupportedModel, match=r"cannot prune an 'albert' model: one layer's weights serve all .*; use"
    ):
        prune(AlbertModel(AlbertConfig(**sizes)), tiny.batched(tiny.texts()), reduction=0.5)


def test_a_decoder_is_refused():
    with pytest.raises(UnsupportedModel, match=r"config\.is_decoder is True; load it with is_decoder=False"):
        find(tiny.tiny_model("bert", "embedding", is_decoder=True))


def test_post_norm_opt_is_refused_by_name():
    model = tiny.tiny_model("opt", "embedding", do_layer_norm_before=False)
    message = r"cannot prune this 'opt' model: config\.do_layer_norm_before is False; use .*do_layer_norm_before=True"
    with pytest.raises(UnsupportedModel, match=message):
        prune(model, tiny.batched(tiny.texts()), reduction=0.5)


def test_rotary_esm_is_refused_by_name():
    model = tiny.tiny_model("esm", "embedding", position_embedding_type="rotary")
    message = r"config\.position_embedding_type is 'rotary'; use .*position_embedding_type='absolute'"
    with pytest.raises(UnsupportedModel, match=message):
        prune(model, tiny.batched(tiny.texts()), reduction=0.5)


def test_what_is_not_a_transformers_model_is_refused():
    with pytest.raises(KpruneError, match="cannot prune a Linear"):
        prune(torch.nn.Linear(2, 2), [], reduction=0.5)


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
def test_as_many_tokens_as_there_are_positions_can_be_read(family):
    model = tiny.tiny_model(family, "embedding")
    positions = max_positions(model.config)
    follows_padding = family in ("roberta", "xlm-roberta", "camembert", "data2vec-text", "esm", "mpnet")
    assert positions == (64 if follows_padding else 66)
    with torch.no_grad():
        assert model(torch.full((1, positions), 7))[0].isfinite().all()
    if family not in ("llama", "modernbert"):  # rotary positions have no table
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.full((1, positions + 1), 7))
