"""The pruning record in `config.json`: the number of remaining units of each sublayer.

The record is stored under `quantization_config`, where transformers looks for a plug-in that changes a model's modules
before it loads the weights. `docs/format.md` describes it.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from kprune.config import QUANT_METHOD
from kprune.errors import BadCheckpoint
from kprune.models.canonical import to_canonical
from kprune.models.families import family_of, max_positions, row_to_store
from kprune.models.head_bias import keep_heads, kept_heads
from kprune.models.per_layer_config import per_layer_config
from kprune.models.resize import add_bias, keep_first
from kprune.models.sublayer import find

METHOD = QUANT_METHOD
FORMAT = 1
NOTE = "Layers have fewer units than the sizes above: `import kprune` before from_pretrained. See README.md."
"""For a reader of config.json, to which transformers' warning about an unknown quantization type points."""

Record = dict[str, Any]


def dense_units(config: PreTrainedConfig) -> dict[str, int]:
    """Units of each kind in every layer of the dense model."""
    return {kind: block.units_of(config) for kind, block in family_of(config).blocks.items()}


def describe(model: PreTrainedModel, history: list[dict[str, Any]]) -> Record | None:
    """The record of a model's present shape, with its history; None if nothing was removed or added."""
    sublayers, layers = find(model), range(model.config.num_hidden_layers)
    per_layer = [{s.kind: s.units for s in sublayers if s.index == index} for index in layers]
    biased = [[s.kind for s in sublayers if s.index == index and s.has_added_bias] for index in layers]
    dense = dense_units(model.config)
    if all(layer == dense for layer in per_layer) and not any(biased):
        return None
    record: Record = {
        "quant_method": METHOD,
        "format": FORMAT,
        "note": NOTE,
        "per_layer": per_layer,
        "history": history,
    }
    mirror = per_layer_config(model.config, per_layer)
    if mirror is not None:
        record["per_layer_config"] = mirror
    row = row_to_store(model.config)
    if row is not None:
        record["family"] = row
    if any(biased):
        record["biased"] = biased
    with_head_bias = [sublayer for sublayer in sublayers if sublayer.block.head_bias is not None]
    if with_head_bias:
        record["kept_heads"] = [kept_heads(sublayer) for sublayer in with_head_bias]
    return record


def record_of(config: PreTrainedConfig) -> Record | None:
    """The pruning record of a config, checked; None for a dense model."""
    record = getattr(config, "quantization_config", None)
    if record is None:
        return None
    if not isinstance(record, dict):
        to_dict = getattr(record, "to_dict", None)
        if to_dict is None:
            raise _mismatch(f"the config's quantization_config is {repr(record)[:80]}, not a record")
        record = to_dict()
    if record.get("quant_method") != METHOD:
        return None
    check(record, config)
    return record


def check(record: Record, config: PreTrainedConfig) -> None:
    """Raise if a record does not fit its config, before a model is built from it."""
    if record.get("format") != FORMAT:
        raise BadCheckpoint(
            f"the pruning record has format {record.get('format')!r} and this kprune reads {FORMAT}; upgrade kprune."
        )
    history = record.get("history")
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise _mismatch(f"the record's 'history' is {repr(history)[:80]}, not a list of entries")
    per_layer = record.get("per_layer")
    layers = config.num_hidden_layers
    if not isinstance(per_layer, list) or len(per_layer) != layers:
        actual = f"{len(per_layer)} layers" if isinstance(per_layer, list) else repr(per_layer)[:80]
        raise _mismatch(f"the record's 'per_layer' has {actual}, the config {layers} layers")
    dense = _declared_units(record, config)
    for index, layer in enumerate(per_layer):
        if not isinstance(layer, dict) or set(layer) != set(dense):
            raise _mismatch(f"layer {index} of the record is {repr(layer)[:80]}, not counts of {sorted(dense)}")
        for kind, units in layer.items():
            # bool is a subclass of int, but not a count
            if type(units) is not int or not 0 <= units <= dense[kind]:
                raise _mismatch(
                    f"layer {index} of the record has {units!r:.80} {kind} units, the config allows 0 to {dense[kind]}"
                )
    _check_biased(record.get("biased"), layers, set(dense))
    if family_of(config).blocks["attention"].head_bias is not None:
        _check_heads(record.get("kept_heads"), [layer["attention"] for layer in per_layer], dense["attention"])


def _declared_units(record: Record, config: PreTrainedConfig) -> dict[str, int]:
    try:
        if "family" in record:
            max_positions(config)
        return dense_units(config)
    except (AttributeError, TypeError, ValueError) as error:
        if "family" not in record:
            raise
        raise _mismatch(f"the record's 'family' does not describe the config ({error})") from error


def _check_biased(biased: Any, layers: int, kinds: set[str]) -> None:
    """Raise unless each layer lists different kinds of sublayers; the list may be absent."""
    if biased is None:
        return
    if not isinstance(biased, list) or len(biased) != layers:
        raise _mismatch(f"the record's 'biased' is {repr(biased)[:80]}, not a list for each of {layers} layers")
    for index, listed in enumerate(biased):
        is_sound = isinstance(listed, list) and all(isinstance(kind, str) for kind in listed)
        if not is_sound or not set(listed) <= kinds or len(set(listed)) != len(listed):
            raise _mismatch(f"'biased' of layer {index} is {repr(listed)[:80]}, not a list of {sorted(kinds)}")


def _check_heads(kept: Any, counts: list[int], dense: int) -> None:
    """Raise unless each layer lists as many different heads of the dense model, in order, as it has."""
    if not isinstance(kept, list) or len(kept) != len(counts):
        raise _mismatch(f"the record's 'kept_heads' is {repr(kept)[:80]}, not a list for each of {len(counts)} layers")
    for index, (heads, count) in enumerate(zip(kept, counts, strict=True)):
        is_sound = isinstance(heads, list) and all(type(head) is int and 0 <= head < dense for head in heads)
        if not is_sound or heads != sorted(set(heads)) or len(heads) != count:
            raise _mismatch(f"'kept_heads' of layer {index} is {repr(heads)[:80]}, not {count} numbers below {dense}")


def apply(record: Record, model: PreTrainedModel) -> None:
    """Resize a dense model, or one on the meta device, to the shape in a record."""
    check(record, model.config)
    try:
        _resize(record, model)
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError, ZeroDivisionError) as error:
        if "family" not in record:
            raise
        raise _mismatch(f"the record's 'family' does not describe the model ({error})") from error


def _resize(record: Record, model: PreTrainedModel) -> None:
    to_canonical(model)
    biased = record.get("biased") or [[]] * len(record["per_layer"])
    for sublayer in find(model):
        units = record["per_layer"][sublayer.index][sublayer.kind]
        if sublayer.kind in biased[sublayer.index]:
            add_bias(sublayer)
        keep_first(sublayer, units)
        if sublayer.block.head_bias is not None and units > 0:
            keep_heads(sublayer, record["kept_heads"][sublayer.index])


def _mismatch(what: str) -> BadCheckpoint:
    return BadCheckpoint(f"{what}: config.json was changed or belongs to another model; restore the whole folder.")
