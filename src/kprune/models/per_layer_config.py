"""Counts per layer in the form of transformers' `per_layer_config`, beside the record, for models that will read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedConfig

from kprune.models.families import family_of
from kprune.models.family import Block

SKIPPED = {"attention": "attention", "ffn": "mlp"}
"""transformers' names of sublayers that a layer does not have."""
WIDTHS = ("head_dim", "d_kv")
"""Config attributes with the width of a head."""


def per_layer_config(
    config: PreTrainedConfig, per_layer: Sequence[Mapping[str, int]]
) -> dict[str, dict[str, Any]] | None:
    """For each layer the config attributes with its counts; None where the config has no attribute for them."""
    blocks = family_of(config).blocks
    if not all(_counts(config, block) for block in blocks.values()):
        return None
    digits = len(str(len(per_layer) - 1))
    found = {}
    for number, units in enumerate(per_layer):
        layer: dict[str, Any] = {}
        for kind, block in blocks.items():
            layer |= values_of(config, block, units[kind] or block.units_of(config), _counts(config, block))
        emptied = [SKIPPED[kind] for kind in blocks if not units[kind]]
        found[f"{number:0{digits}}"] = {**layer, **({"skip": emptied} if emptied else {})}
    return found


def values_of(config: PreTrainedConfig, block: Block, units: int, counts: Mapping[str, str]) -> dict[str, int]:
    """The config attributes of a sublayer with so many units; heads keep their width, and their queries."""
    before, values = block.units_of(config), {}
    for name, counted in counts.items():
        present: Any = getattr(config, name, None)
        if counted == "width":
            values[name] = present or config.hidden_size // config.num_attention_heads
        else:
            values[name] = units if counted == "units" else present // before * units
    return values


def _counts(config: PreTrainedConfig, block: Block) -> Mapping[str, str]:
    """Config attributes that describe a sublayer, each with what it counts; empty if there are none."""
    if block.native_counts or not isinstance(block.dense_units, str):
        return block.native_counts
    has_width = any(getattr(config, name, None) for name in WIDTHS)
    return {block.dense_units: "units", **({} if has_width else {"head_dim": "width"})}
