"""With the table hidden, the proposal finds a row for every family; it accepts no row that breaks a law."""

import copy

import pytest
import torch
import transformers
import zoo
from torch import nn
from transformers import AutoConfig

from kprune.errors import UnsupportedModel
from kprune.models.families import FAMILIES, REFUSED, REGISTERED, family_of
from kprune.models.laws import LawBroken, check_all
from kprune.models.outputs import kind_of
from kprune.models.proposal import propose, registered
from kprune.models.sublayer import find

DECODER = {**zoo.DECODER, "vocab_size": 99, "max_position_embeddings": 66, "pad_token_id": 1}
ENCODER = {**zoo.SIZES, "vocab_size": 99, "max_position_embeddings": 66, "pad_token_id": 1}
GPTJ = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 66, "n_inner": 48, "rotary_dim": 4, "vocab_size": 99}
CAUSAL = "AutoModelForCausalLM"
UNLISTED = {
    "gptj": (CAUSAL, GPTJ),  # parallel, one norm for both sublayers
    "stablelm": (CAUSAL, DECODER),
    "glm4": (CAUSAL, {**DECODER, "head_dim": 8}),  # norms before and after both sublayers, fused gate
    "roformer": ("AutoModelForMaskedLM", ENCODER),
    "beit": ("AutoModelForImageClassification", zoo.IMAGE),  # attention is two modules deep, without a mid stream
}
"""Model types without a row in the table."""
OUT_OF_REACH = {
    "mixtral": (CAUSAL, {**DECODER, "num_local_experts": 2}, "attention was found"),
    "bloom": (CAUSAL, {"hidden_size": 32, "n_layer": 3, "n_head": 4, "vocab_size": 99}, "is not the whole pass"),
    "squeezebert": ("AutoModelForMaskedLM", {**ENCODER, "embedding_size": 32}, "no list of 3 equal layers"),
    "xlnet": (
        "AutoModel",
        {"d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 48, "vocab_size": 99},
        "ffn was found",
    ),
}


def build(model_type, loader, sizes):
    torch.manual_seed(0)
    model = getattr(transformers, loader).from_config(AutoConfig.for_model(model_type, **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.25 * torch.randn_like(parameter))
    return model.eval()


def inputs(model):
    if model.main_input_name == "pixel_values":
        return [{"pixel_values": torch.randn(4, 3, 16, 16)}]
    ids = torch.randint(5, 99, (4, 12))
    return [{"input_ids": ids, "attention_mask": torch.ones_like(ids)}]


@pytest.mark.parametrize("name", zoo.marked(zoo.ZOO))
def test_a_hidden_family_is_found(name, monkeypatch):
    """Every family is found: the share is 100 %. The units are those of the row that was written by hand."""
    model = zoo.build(name)
    batches, by_hand = zoo.batches(model), family_of(model.config)
    expected = [(sublayer.units, sublayer.width, sublayer.weights_per_unit) for sublayer in find(model)]
    monkeypatch.delitem(FAMILIES, model.config.model_type)
    row = propose(model, batches)
    for kind, block in by_hand.blocks.items():
        assert (row.blocks[kind].producers, row.blocks[kind].consumer) == (block.producers, block.consumer)
    for field in ("layers", "causal", "has_cache", "is_parallel", "shared_bias", "inputs", "norm_placement"):
        assert getattr(row, field) == getattr(by_hand, field), field
    with registered(model.config.model_type, row):
        assert [(sublayer.units, sublayer.width, sublayer.weights_per_unit) for sublayer in find(model)] == expected
    assert REGISTERED == {}


def test_a_proposal_does_not_change_the_model(monkeypatch):
    for name in ("t5", "dinov2"):  # their canonical forms have other weights
        model = zoo.build(name)
        batches, before = zoo.batches(model), copy.deepcopy(model.state_dict())
        monkeypatch.delitem(FAMILIES, name)
        propose(model.half(), batches)
        after = model.state_dict()
        assert {key: value.half().equal(after[key]) for key, value in before.items()} == dict.fromkeys(after, True)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", UNLISTED)
def test_a_model_type_without_a_row_gets_one(name):
    model = build(name, *UNLISTED[name])
    assert name not in FAMILIES
    row = propose(model, inputs(model))
    assert [len(row.blocks[kind].producers) for kind in ("attention", "ffn")] == {
        "stablelm": [3, 2],
    }.get(name, [3, 1])


@pytest.mark.parametrize("name", OUT_OF_REACH)
def test_a_model_that_no_row_describes_is_refused_with_what_failed(name):
    loader, sizes, reason = OUT_OF_REACH[name]
    model = build(name, loader, sizes)
    with pytest.raises(UnsupportedModel, match=f"cannot prune a '{name}' model: .*{reason}"):
        propose(model, inputs(model))
    assert REGISTERED == {}


def test_norms_over_all_heads_break_the_law_of_removal(monkeypatch):
    model = build("olmo2", CAUSAL, DECODER)
    with pytest.raises(UnsupportedModel, match="its query and key norms span all heads"):
        propose(model, inputs(model))
    monkeypatch.delitem(REFUSED, "olmo2")
    with pytest.raises(
        UnsupportedModel, match=r"no row keeps all laws\. The best one fails: .*(remov|without some units)"
    ):
        propose(model, inputs(model))


class SecondReader:
    """Adds to a layer's output what another weight reads from the features of its FFN."""

    def __init__(self, features: int, width: int) -> None:
        self.weight = 0.1 * torch.randn(width, features)
        self.seen: list[torch.Tensor] = []

    def see(self, module, args):
        self.seen = [args[0]]

    def add(self, module, args, output):
        hidden = output[0] if isinstance(output, tuple) else output
        made = hidden + self.seen[0].view(*hidden.shape[:-1], -1) @ self.weight.T
        return (made, *output[1:]) if isinstance(output, tuple) else made


@pytest.mark.parametrize("name", ["bert", "llama", "opt", "vit"])
def test_a_second_reader_of_the_features_is_noticed(name, monkeypatch):
    model = zoo.build(name)
    batches, sample = zoo.batches(model), zoo.sample(model)
    for ffn in find(model)[1::2]:
        reader = SecondReader(ffn.features, ffn.consumer.out_features)
        producer = ffn.layer.get_submodule(ffn.block.consumer)
        assert isinstance(producer, nn.Linear)
        # Reads the features before they are masked, as a Linear of the model's own would.
        ffn.layer.get_submodule(ffn.block.consumer).register_forward_pre_hook(reader.see, prepend=True)
        ffn.layer.register_forward_hook(reader.add)
    with pytest.raises(LawBroken):
        check_all(model, kind_of(model), sample.batches[0])
    monkeypatch.delitem(FAMILIES, model.config.model_type)
    with pytest.raises(UnsupportedModel):
        propose(model, batches)
