"""A family's row: dotted paths of a model's layers and of the parts of a layer.

Attention and FFN blocks have the same fields: units make features, and one consumer Linear reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedConfig

Stack = int | tuple[int | str, ...]
"""The matrices stacked in one weight: their number, or their relative heights (numbers, or attributes of the layer)."""

COUNTED = ("units", "queries", "features")
"""What an attribute that is rewritten after a resize may count."""
CONFIG_COUNTED = ("units", "queries", "width")
"""What a config attribute that describes every layer may count; `width` is that of a head."""
INPUTS = {
    "input_ids": "text",
    "pixel_values": "images",
    "input_features": "sound",
    "input_values": "sound",
}
"""A model's main input, by the name of the argument."""


@dataclass(frozen=True)
class Block:
    """Dotted paths, inside one layer, of one kind of sublayer."""

    residual_input: str
    """Module whose input is the residual stream: the query projection (post-norm), the norm (pre-norm)."""
    module: str
    """Module that makes the features; replaced if no unit is left."""
    producers: dict[str, Stack]
    """Linears whose output rows belong to units, with the matrices stacked in each weight.

    1 for a plain projection, 3 for a fused QKV projection, 2 for a fused gate. Rows per unit follow from the shapes.
    """
    consumer: str
    """The only Linear that reads the features; its input columns belong to units."""
    dense_units: str | int | Callable[[PreTrainedConfig], int]
    """Units of the dense sublayer, by a config attribute, a number or a function: heads, key/value heads or neurons."""
    unit_width: tuple[str | int, ...] = ()
    """Attributes, inside the layer, or numbers, whose product is the features per unit; none: one, as for a neuron.

    The first is the width of a head. With grouped queries the second is the number of query heads per unit.
    """
    counts: tuple[tuple[str, str], ...] = ()
    """Attributes to rewrite after a resize, each with what it counts: `units`, `queries` (heads) or `features`."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Further parameters that belong to units, with the dimension that is divided among them; absent ones are skipped.

    Biases outside a Linear, or a table with a column per head.
    """
    head_bias: str | None = None
    """Argument of `module` with one entry per dense head, (examples, heads, …); all layers get the same tensor."""
    output_scale: str | None = None
    """Parameter that multiplies the consumer's output; `kprune.models.canonical` moves it into the consumer."""
    is_normed: bool = False
    """Whether the consumer's output is normalised before it is added to the stream."""
    returns: int = 1
    """Values that `module` returns: 1 for a tensor, 2 for a pair of its output and the attention weights."""
    cache: str = "past_key_values"
    """Argument of an attention module with the key/value cache, in families that have one."""
    config_counts: dict[str, str] = field(default_factory=dict)
    """Config attributes by which all layers can have fewer units, each with what it counts (`CONFIG_COUNTED`).

    Empty: heads cannot be fewer, and the neurons' attribute is `dense_units`.
    """

    @property
    def consumer_is_inside(self) -> bool:
        """Whether `module` contains the consumer, and so returns the consumer's output, not the features."""
        return self.consumer.startswith(self.module + ".")

    @property
    def native_counts(self) -> dict[str, str]:
        """Config attributes by which all layers can have fewer units; empty if a config cannot say it."""
        if self.config_counts or self.unit_width or not isinstance(self.dense_units, str):
            return self.config_counts
        return {self.dense_units: "units"}

    def units_of(self, config: PreTrainedConfig) -> int:
        """Units of the dense sublayer."""
        units = self.dense_units
        if isinstance(units, int):
            return units
        return int(getattr(config, units) if isinstance(units, str) else units(config))


@dataclass(frozen=True)
class Family:
    """Where a model keeps its layers, and each layer its two sublayers, in the order in which they run."""

    layers: str
    """Dotted path, from the base model, of the list of layers."""
    blocks: dict[str, Block]
    """The sublayers of a layer by kind, `attention` and `ffn`, in the order in which they run."""
    mid_stream: str | None
    """Module whose output is the residual stream at the FFN. None: attention returns what the layer adds to it."""
    embeddings: str | None
    """Dotted path, from the base model, of the module that embeds inputs; passes that start higher skip it."""
    layer_returns: int = 1
    """Values that a layer returns: 1 for the stream itself, more for a tuple that begins with it."""
    causal: bool = False
    """Whether attention sees earlier tokens only."""
    has_cache: bool = False
    """Whether the model keeps keys and values for generation; it is called without that."""
    is_parallel: bool = False
    """Whether the FFN reads the layer's input, not the stream after attention; both outputs are added to it."""
    shared_bias: str | None = None
    """Module, inside the lowest layer, with a table of position biases that all layers share.

    `kprune.models.canonical` gives every layer a table of its own.
    """
    inputs: str = "input_ids"
    """The argument with the model's main input: `input_ids`, `pixel_values`, `input_features` or `input_values`."""
    requires: dict[str, Any] = field(default_factory=dict)
    """Config attributes for which the row holds, with their values; a config without the attribute is accepted."""
    otherwise: Family | None = None
    """The row for configs that `requires` excludes."""
    positions: str | None = "max_position_embeddings"
    """Config attribute with the number of positions; None: unlimited, or fixed by the inputs."""
    positions_follow_padding: bool = False
    """Whether positions start at `pad_token_id` + 1, so that fewer tokens fit than there are positions."""
    first_token_saving: bool = False
    """Whether `kprune.models.first_token` may narrow the topmost layer: its FFN reads (examples, length, d)."""
    uncounted: str | None = None
    """What a unit computes that FLOPs leave out; None: nothing."""
    real_checkpoint: str | None = None
    """A published checkpoint of the family that was pruned and evaluated; None: only models built from configs."""

    @property
    def norm_placement(self) -> str:
        """`pre-norm`, `post-norm`, `sandwich` or `parallel`."""
        attention = self.blocks["attention"]
        if self.is_parallel:
            return "parallel"
        if attention.is_normed:
            return "sandwich"
        reads_stream = attention.residual_input in (attention.module, *attention.producers)
        return "post-norm" if reads_stream else "pre-norm"

    @property
    def projections(self) -> str:
        """How attention stores its projections: `separate`, `fused` in one weight, `grouped` queries, or both."""
        attention = self.blocks["attention"]
        words = ["fused"] * (len(attention.producers) == 1) + ["grouped"] * (len(attention.unit_width) > 1)
        return ", ".join(words) or "separate"
