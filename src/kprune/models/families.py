"""Where each model family keeps its parts: one row of dotted paths per family.

Attention and FFN blocks have the same fields: units make features, and one consumer Linear reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from transformers import PreTrainedConfig

from kprune.errors import UnsupportedModel


@dataclass(frozen=True)
class Block:
    """Dotted paths, inside one layer, of one kind of sublayer."""

    residual_input: str
    """Module whose input is the residual stream: the query projection (post-norm), the norm (pre-norm)."""
    module: str
    """Module that makes the features; replaced if no unit is left."""
    producers: dict[str, int]
    """Linears whose output rows belong to units, with the number of matrices stacked in each weight.

    1 for a plain projection, 3 for a fused QKV projection, 2 for a fused gate. Rows per unit follow from the shapes.
    """
    consumer: str
    """The only Linear that reads the features; its input columns belong to units."""
    dense_units: str
    """Config attribute with the number of units of the dense sublayer: heads, key/value heads or neurons."""
    unit_width: tuple[str, ...] = ()
    """Attributes, inside the layer, whose product is the number of features per unit; none: one, as for a neuron."""
    counts: tuple[tuple[str, str], ...] = ()
    """Attributes to rewrite after a resize, each with what it counts: `units` or `features`."""
    head_bias: str | None = None
    """Argument of `module` with one entry per dense head, (examples, heads, …); all layers get the same tensor."""
    returns_tuple: bool = False
    """Whether `module` returns a pair of its output and the attention weights."""

    @property
    def consumer_is_inside(self) -> bool:
        """Whether `module` contains the consumer, and so returns the consumer's output, not the features."""
        return self.consumer.startswith(self.module + ".")


@dataclass(frozen=True)
class Family:
    """Where a model keeps its layers, and each layer its two sublayers, in the order in which they run."""

    layers: str
    """Dotted path, from the base model, of the list of layers."""
    blocks: dict[str, Block]
    """The sublayers of a layer by kind, `attention` and `ffn`, in the order in which they run."""
    mid_stream: str | None
    """Module whose output is the residual stream at the FFN. None: attention returns what the layer adds to it."""
    embeddings: str
    """Dotted path, from the base model, of the module that embeds tokens; passes that start higher skip it."""
    layers_return_tuple: bool = False
    """Whether a layer returns a tuple that begins with the stream."""
    causal: bool = False
    """Whether attention sees earlier tokens only; such models are called without a key/value cache."""
    requires: dict[str, Any] = field(default_factory=lambda: {"is_decoder": False})
    """Config attributes for which the row holds, with their values; a config without the attribute is accepted."""
    positions_follow_padding: bool = False
    """Whether positions start at `pad_token_id` + 1, so that fewer tokens fit than there are positions."""
    first_token_saving: bool = False
    """Whether `kprune.models.first_token` may narrow the topmost layer: its FFN reads (examples, length, d)."""
    is_announced: bool = True
    """Whether `kprune families` lists it."""


BERT = Family(
    layers="encoder.layer",
    mid_stream="attention.output",
    embeddings="embeddings",
    first_token_saving=True,
    blocks={
        "attention": Block(
            residual_input="attention.self.query",
            module="attention.self",
            producers={"attention.self.query": 1, "attention.self.key": 1, "attention.self.value": 1},
            consumer="attention.output.dense",
            dense_units="num_attention_heads",
            unit_width=("attention.self.attention_head_size",),
            returns_tuple=True,
        ),
        "ffn": Block(
            residual_input="intermediate.dense",
            module="intermediate",
            producers={"intermediate.dense": 1},
            consumer="output.dense",
            dense_units="intermediate_size",
        ),
    },
)

ROBERTA = replace(BERT, positions_follow_padding=True)

# Pre-norm with BERT's projections: `attention.output` adds the stream.
ESM = replace(
    ROBERTA,
    # With rotary positions, transformers saves a buffer under a layer's name, which pruned folders may not have.
    requires={"is_decoder": False, "position_embedding_type": "absolute"},
    first_token_saving=False,
    blocks={
        "attention": replace(BERT.blocks["attention"], residual_input="attention.LayerNorm"),
        "ffn": replace(BERT.blocks["ffn"], residual_input="LayerNorm"),
    },
)
MEGATRON_BERT = replace(
    BERT,
    first_token_saving=False,
    layers_return_tuple=True,
    blocks={
        "attention": replace(
            BERT.blocks["attention"],
            residual_input="attention.ln",
            counts=(("attention.self.all_head_size", "features"),),
        ),
        "ffn": replace(BERT.blocks["ffn"], residual_input="ln"),
    },
)

MPNET = replace(
    ROBERTA,
    mid_stream="attention.LayerNorm",
    first_token_saving=False,
    layers_return_tuple=True,
    blocks={
        "attention": Block(
            residual_input="attention.attn.q",
            module="attention.attn",
            producers={"attention.attn.q": 1, "attention.attn.k": 1, "attention.attn.v": 1},
            consumer="attention.attn.o",
            dense_units="num_attention_heads",
            unit_width=("attention.attn.attention_head_size",),
            counts=(("attention.attn.all_head_size", "features"),),
            head_bias="position_bias",
            returns_tuple=True,
        ),
        "ffn": BERT.blocks["ffn"],
    },
)

DISTILBERT = Family(
    layers="transformer.layer",
    mid_stream="sa_layer_norm",
    embeddings="embeddings",
    first_token_saving=True,
    blocks={
        "attention": Block(
            residual_input="attention.q_lin",
            module="attention",
            producers={"attention.q_lin": 1, "attention.k_lin": 1, "attention.v_lin": 1},
            consumer="attention.out_lin",
            dense_units="n_heads",
            unit_width=("attention.attention_head_size",),
            returns_tuple=True,
        ),
        "ffn": Block(
            residual_input="ffn.lin1",
            module="ffn",
            producers={"ffn.lin1": 1},
            consumer="ffn.lin2",
            dense_units="hidden_dim",
        ),
    },
)

MODERNBERT = Family(
    layers="layers",
    mid_stream=None,
    embeddings="embeddings",
    blocks={
        "attention": Block(
            residual_input="attn_norm",
            module="attn",
            producers={"attn.Wqkv": 3},
            consumer="attn.Wo",
            dense_units="num_attention_heads",
            unit_width=("attn.head_dim",),
            returns_tuple=True,
        ),
        "ffn": Block(
            residual_input="mlp_norm",
            module="mlp",
            producers={"mlp.Wi": 2},
            consumer="mlp.Wo",
            dense_units="intermediate_size",
        ),
    },
)

LLAMA = Family(
    layers="layers",
    mid_stream=None,
    embeddings="embed_tokens",
    causal=True,
    requires={},
    is_announced=False,
    blocks={
        # A unit is a key/value head with the query heads that read it.
        "attention": Block(
            residual_input="input_layernorm",
            module="self_attn",
            producers={"self_attn.q_proj": 1, "self_attn.k_proj": 1, "self_attn.v_proj": 1},
            consumer="self_attn.o_proj",
            dense_units="num_key_value_heads",
            unit_width=("self_attn.head_dim", "self_attn.num_key_value_groups"),
            returns_tuple=True,
        ),
        "ffn": Block(
            residual_input="post_attention_layernorm",
            module="mlp",
            producers={"mlp.gate_proj": 1, "mlp.up_proj": 1},
            consumer="mlp.down_proj",
            dense_units="intermediate_size",
        ),
    },
)

OPT = Family(
    layers="decoder.layers",
    mid_stream=None,
    embeddings="decoder.embed_tokens",
    causal=True,
    requires={"do_layer_norm_before": True},
    is_announced=False,
    blocks={
        "attention": Block(
            residual_input="self_attn_layer_norm",
            module="self_attn",
            producers={"self_attn.q_proj": 1, "self_attn.k_proj": 1, "self_attn.v_proj": 1},
            consumer="self_attn.out_proj",
            dense_units="num_attention_heads",
            unit_width=("self_attn.head_dim",),
            counts=(("self_attn.num_heads", "units"),),
            returns_tuple=True,
        ),
        "ffn": Block(
            residual_input="final_layer_norm",
            module="fc1",
            producers={"fc1": 1},
            consumer="fc2",
            dense_units="ffn_dim",
        ),
    },
)

FAMILIES: dict[str, Family] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "electra": BERT,
    "ernie": BERT,
    "data2vec-text": ROBERTA,
    "esm": ESM,
    "megatron-bert": MEGATRON_BERT,
    "mpnet": MPNET,
    "distilbert": DISTILBERT,
    "modernbert": MODERNBERT,
    "llama": LLAMA,
    "opt": OPT,
}


REMEDIES = {"is_decoder": "load it with"}
"""What to do about a config attribute that a row does not support, where training does not depend on it."""


REFUSED = {
    "albert": "one layer's weights serve all its layers, and kprune prunes each layer on its own; use a BERT model"
}
"""Why a family cannot be pruned, and what to use instead."""


def announced_families() -> dict[str, Family]:
    """The families that are announced as supported, by `model_type`."""
    return {name: family for name, family in FAMILIES.items() if family.is_announced}


def family_of(config: PreTrainedConfig) -> Family:
    """The row of a model's config, by its `model_type`."""
    model_type = config.model_type
    if model_type in REFUSED:
        raise UnsupportedModel(f"cannot prune an {model_type!r} model: {REFUSED[model_type]}.")
    if model_type not in FAMILIES:
        raise UnsupportedModel(
            f"cannot prune a {model_type!r} model; supported: {', '.join(sorted(announced_families()))}. "
            "Adding a family takes about ten lines: see docs/new-family.md."
        )
    family = FAMILIES[model_type]
    for name, value in family.requires.items():
        if getattr(config, name, value) != value:
            raise UnsupportedModel(
                f"cannot prune this {model_type!r} model: config.{name} is {getattr(config, name)!r}; "
                f"{REMEDIES.get(name, 'use a model that was trained with')} {name}={value!r}."
            )
    return family


def max_positions(config: PreTrainedConfig) -> int:
    """The largest number of tokens that a model has positions for."""
    positions: int = config.max_position_embeddings
    if family_of(config).positions_follow_padding:
        positions -= config.pad_token_id + 1
    return positions
