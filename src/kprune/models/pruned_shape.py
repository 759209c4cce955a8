"""The pruning record in `config.json`: the number of remaining units of each sublayer.

The record is stored under `quantization_config`, where transformers looks for a plug-in that changes a model's modules
before it loads the weights. `docs/format.md` describes it.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from kprune.config import QUANT_METHOD
from kprune.errors import BadCheckpoint
from kprune.models.families import family_of
from kprune.models.resize import keep_first
from kprune.models.sublayer import find

METHOD = QUANT_METHOD
FORMAT = 1
NOTE = "Layers have fewer units than the sizes above: `import kprune` before from_pretrained. See README.md."
"""For a reader of config.json, to which transformers' warning about an unknown quantization type points."""

Record = dict[str, Any]


def dense_units(config: PreTrainedConfig) -> dict[str, int]:
    """Units of each kind in every layer of the dense model."""
    return {kind: getattr(config, block.dense_units) for kind, block in family_of(config).blocks.items()}


def describe(model: PreTrainedModel, history: list[dict[str, Any]]) -> Record | None:
    """The record of a model's present shape, with its history; None if nothing was removed."""
    per_layer: list[dict[str, int]] = [{} for _ in range(model.config.num_hidden_layers)]
    for sublayer in find(model):
        per_layer[sublayer.index][sublayer.kind] = sublayer.units
    dense = dense_units(model.config)
    if all(layer == dense for layer in per_layer):
        return None
    return {"quant_method": METHOD, "format": FORMAT, "note": NOTE, "per_layer": per_layer, "history": history}


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
    dense = dense_units(config)
    for index, layer in enumerate(per_layer):
        if not isinstance(layer, dict) or set(layer) != set(dense):
            raise _mismatch(f"layer {index} of the record is {repr(layer)[:80]}, not counts of {sorted(dense)}")
        for kind, units in layer.items():
            # bool is a subclass of int, but not a count
            if type(units) is not int or not 0 <= units <= dense[kind]:
                raise _mismatch(
                    f"layer {index} of the record has {units!r:.80} {kind} units, the config allows 0 to {dense[kind]}"
                )


def apply(record: Record, model: PreTrainedModel) -> None:
    """Resize a dense model, or one on the meta device, to the shape in a record."""
    check(record, model.config)
    for sublayer in find(model):
        keep_first(sublayer, record["per_layer"][sublayer.index][sublayer.kind])


def _mismatch(what: str) -> BadCheckpoint:
    return BadCheckpoint(f"{what}: config.json was changed or belongs to another model; restore the whole folder.")
