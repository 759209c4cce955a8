"""Native models: every layer has the same number of units, and the config alone says how many.

Plain transformers loads such a model without kprune. What kprune did is kept under `kprune` in config.json, which
transformers passes on and does not read. `docs/format.md` describes it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from kprune.config import NATIVE_KEY
from kprune.errors import BadCheckpoint, UnsupportedModel
from kprune.models.canonical import share_position_bias
from kprune.models.families import family_of
from kprune.models.per_layer_config import values_of
from kprune.models.pruned_shape import FORMAT, Record, dense_units, record_of
from kprune.models.resize import keep_first
from kprune.models.sublayer import find


def native_record_of(config: PreTrainedConfig) -> Record | None:
    """The record of a native model, checked; None for other models."""
    record = getattr(config, NATIVE_KEY, None)
    if record is None:
        return None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise _mismatch(f"is {repr(record)[:80]}, not a record of format {FORMAT}")
    history, dense = record.get("history"), record.get("dense")
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise _mismatch(f"has the history {repr(history)[:80]}, not a list of entries")
    counts = dense if isinstance(dense, dict) and set(dense) == {"attention", "ffn"} else {"": None}
    if not all(type(units) is int and 0 < units < 10**7 for units in counts.values()):
        raise _mismatch(f"has the dense counts {repr(dense)[:80]}, not one of heads and one of neurons")
    return record


def history_of(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """One entry per pruning of a model, the first one first; empty for a dense model."""
    record = record_of(config) or native_record_of(config)
    return list(record["history"]) if record else []


def set_history(config: PreTrainedConfig, history: list[dict[str, Any]]) -> None:
    """Replace the history in the record from which `history_of` reads it."""
    key = NATIVE_KEY if record_of(config) is None else "quantization_config"
    setattr(config, key, {**getattr(config, key), "history": history})


def dense_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The config of the model before it became native; the config itself if it never did."""
    record = native_record_of(config)
    if record is None:
        return config
    if any(record["dense"][kind] < units for kind, units in dense_units(config).items()):
        raise _mismatch(f"has the dense counts {record['dense']}, and the config {dense_units(config)}")
    return _with_units(config, record["dense"])


def unit_limits(model: PreTrainedModel) -> dict[str, tuple[int, int]]:
    """The fewest and the most units, by kind, that every layer of a native model can have.

    They are equal where the config cannot say that there are fewer. Raises if the model cannot become native.
    """
    _require_config_counts(model)
    limits, sublayers, dense = {}, find(model), dense_units(model.config)
    for kind, block in family_of(model.config).blocks.items():
        units = {sublayer.units for sublayer in sublayers if sublayer.kind == kind}
        limits[kind] = (1, min(units)) if block.native_counts else (dense[kind], dense[kind])
        if 0 in units or (not block.native_counts and units != {dense[kind]}):
            raise UnsupportedModel(
                f"this {model.config.model_type!r} model was pruned before, and has {sorted(units)} {kind} units in "
                "its layers, which no config can say; prune the dense model with native, or leave native out."
            )
    return limits


def _require_config_counts(model: PreTrainedModel) -> None:
    """Raise unless the config can say that all layers are narrower; tried on the meta device."""
    config, family = model.config, family_of(model.config)
    start = f"cannot keep a {config.model_type!r} model native: "
    if not family.blocks["ffn"].native_counts:
        raise UnsupportedModel(
            f"{start}its config has no number for the width of feed-forward blocks; leave native out."
        )
    if any(sublayer.has_added_bias for sublayer in find(model)):
        raise UnsupportedModel(f"{start}biases were added to it, which its class does not have; leave native out.")
    units = {
        kind: (dense + 1) // 2 if family.blocks[kind].native_counts else dense
        for kind, dense in dense_units(config).items()
    }
    try:
        with torch.device("meta"):
            cut, plain = type(model)(copy.deepcopy(config)), type(model)(_with_units(config, units))
        for sublayer in find(cut):
            keep_first(sublayer, units[sublayer.kind])
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UnsupportedModel(f"{start}its class refuses narrower layers ({reason}); leave native out.") from error
    _require_same_shapes(cut, plain)


def become_native(model: PreTrainedModel, history: Sequence[Mapping[str, Any]]) -> None:
    """Let the config say the number of units in every layer, with the history under a key of its own; in place."""
    config = model.config
    earlier = native_record_of(config)
    dense = earlier["dense"] if earlier else dense_units(config)
    counts = {sublayer.kind: sublayer.units for sublayer in find(model)}
    share_position_bias(model)
    _set_units(config, counts)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    setattr(config, NATIVE_KEY, {"format": FORMAT, "dense": dense, "history": list(history)})
    with torch.device("meta"):
        _require_same_shapes(model, type(model)(copy.deepcopy(config)))


def _with_units(config: PreTrainedConfig, units: Mapping[str, int]) -> PreTrainedConfig:
    """A copy of a config whose layers have other numbers of units."""
    other = copy.deepcopy(config)
    _set_units(other, units)
    return other


def _set_units(config: PreTrainedConfig, units: Mapping[str, int]) -> None:
    """Write the number of units in every layer; the width of a head stays, and so do the query heads per unit."""
    for kind, block in family_of(config).blocks.items():
        for name, value in values_of(config, block, units[kind], block.native_counts).items():
            setattr(config, name, value)


def _require_same_shapes(model: PreTrainedModel, plain: PreTrainedModel) -> None:
    """Raise if a model differs from the one that plain transformers builds; rarely used poolers may be absent."""
    ours, theirs = ({name: tuple(value.shape) for name, value in each.state_dict().items()} for each in (model, plain))
    absent = {name for name in theirs if name not in ours and ".pooler." in f".{name}"}
    differing = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name) and name not in absent]
    if differing:
        name = differing[0]
        raise UnsupportedModel(
            f"cannot keep a {model.config.model_type!r} model native: {name} has shape {ours.get(name)} and "
            f"{theirs.get(name)} by its config; leave native out."
        )


def _mismatch(what: str) -> BadCheckpoint:
    return BadCheckpoint(f"the entry {NATIVE_KEY!r} of config.json {what}; restore the whole folder.")
