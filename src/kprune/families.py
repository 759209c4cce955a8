"""Where each model family keeps its parts.

A family is a row of dotted paths. Attention and feed-forward blocks have the same fields, because to everything
above this file they are the same thing: units make features, and one consumer Linear reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from transformers import PreTrainedConfig

from kprune.errors import UnsupportedModel


@dataclass(frozen=True)
class Slot:
    """Dotted paths, inside one layer, of one kind of sublayer."""

    stream: str
    """The module whose input is the residual stream that the sublayer's output is added to."""
    block: str
    """The module that a pass-through replaces when no unit is left."""
    producers: tuple[str, ...]
    """Linears whose output rows belong to units."""
    consumer: str
    """The only Linear that reads the features; its input columns belong to units."""
    dense_units: str
    """The config's attribute that holds how many units the dense sublayer has."""
    width: str | None = None
    """Attribute that holds the features per unit (d_h of a head); None: one, as for a neuron."""
    scaling: str | None = None
    """Attribute that holds what products of queries and keys are scaled by; None: scores are more than that."""
    returns_weights: bool = False
    """Whether the block returns a pair of its output and the attention weights."""

    @property
    def consumer_is_inside(self) -> bool:
        """Whether the block returns what the consumer makes of the features, and not the features."""
        return self.consumer.startswith(self.block + ".")


@dataclass(frozen=True)
class Family:
    """Where a model keeps its layers, and each layer its two sublayers, in the order in which they run."""

    layers: str
    """Dotted path, from the base model, of the list of layers."""
    joint: str
    """Dotted path, inside a layer, of the module whose output is the residual stream at the FFN."""
    attention: Slot
    ffn: Slot
    embeddings: str = "embeddings"
    """Dotted path, from the base model, of the module that reads the token numbers."""
    positions_follow_padding: bool = False
    """Whether positions are counted from `pad_token_id` + 1, so that fewer tokens fit than there are positions."""

    @property
    def slots(self) -> dict[str, Slot]:
        """The sublayers of a layer by kind, in the order in which they run."""
        return {"attention": self.attention, "ffn": self.ffn}


BERT = Family(
    layers="encoder.layer",
    joint="attention.output",
    attention=Slot(
        stream="attention.self.query",
        block="attention.self",
        producers=("attention.self.query", "attention.self.key", "attention.self.value"),
        consumer="attention.output.dense",
        dense_units="num_attention_heads",
        width="attention.self.attention_head_size",
        scaling="attention.self.scaling",
        returns_weights=True,
    ),
    ffn=Slot(
        stream="intermediate.dense",
        block="intermediate",
        producers=("intermediate.dense",),
        consumer="output.dense",
        dense_units="intermediate_size",
    ),
)

ROBERTA = replace(BERT, positions_follow_padding=True)

DISTILBERT = Family(
    layers="transformer.layer",
    joint="sa_layer_norm",
    attention=Slot(
        stream="attention.q_lin",
        block="attention",
        producers=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        consumer="attention.out_lin",
        dense_units="n_heads",
        width="attention.attention_head_size",
        scaling="attention.scaling",
        returns_weights=True,
    ),
    ffn=Slot(
        stream="ffn.lin1",
        block="ffn",
        producers=("ffn.lin1",),
        consumer="ffn.lin2",
        dense_units="hidden_dim",
    ),
)

FAMILIES: dict[str, Family] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "electra": BERT,
    "distilbert": DISTILBERT,
}


def positions_of(config: PreTrainedConfig) -> int:
    """The most tokens that a model has positions for."""
    positions: int = config.max_position_embeddings
    if family_of(config).positions_follow_padding:
        positions -= config.pad_token_id + 1
    return positions


def family_of(config: PreTrainedConfig) -> Family:
    """The row of a model's config in the table, by its `model_type`."""
    model_type = config.model_type
    if model_type not in FAMILIES:
        raise UnsupportedModel(
            f"cannot prune a {model_type!r} model; supported: {', '.join(sorted(FAMILIES))}. "
            "Adding a family takes about ten lines: see docs/new-family.md."
        )
    if getattr(config, "is_decoder", False):
        raise UnsupportedModel(
            f"cannot prune a {model_type!r} model that is set up as a decoder (config.is_decoder=True); "
            "only encoders are supported: load it with is_decoder=False."
        )
    return FAMILIES[model_type]
