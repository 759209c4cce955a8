"""The row of a model outside the table, proven once per model: proposed for it, or read from its record and tried."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.errors import BadCheckpoint, KpruneError
from kprune.models.families import FAMILIES, REFUSED, REGISTERED, recorded_row
from kprune.models.family import Family
from kprune.models.outputs import kind_of
from kprune.models.proposal import ERRORS, laws_kept, propose, reason, trial_batch

log = logging.getLogger(__name__)

NOISE = 0.02
"""Added to initial weights, of which some are zero: a law would hold for a wrong row."""

_PROVEN: WeakKeyDictionary[PreTrainedModel, Family] = WeakKeyDictionary()


def needs_proof(model: PreTrainedModel) -> bool:
    """Whether the model's row is not the table's, and no row was proven on the model yet."""
    config = model.config
    is_known = config.model_type in REFUSED or model in _PROVEN
    return not is_known and (config.model_type not in FAMILIES or recorded_row(config) is not None)


def prove_row(model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]], *, pooling: str = "mean") -> None:
    """Propose and register a row for the model, or try the one in its record; raises if a law does not hold."""
    row = recorded_row(model.config)
    if row is None:
        row = propose(model, batches, pooling=pooling)
        REGISTERED[model.config.model_type] = row
        log.warning("a %r model has no row in the table; one was proposed and checked", model.config.model_type)
    else:
        _try_recorded(model, row, batches, pooling)
    _PROVEN[model] = row


def forget_row(model: PreTrainedModel) -> None:
    """Take back a proof: the model, or another of its type, needs a new one."""
    REGISTERED.pop(model.config.model_type, None)
    _PROVEN.pop(model, None)


def recall_row(model: PreTrainedModel) -> None:
    """Register the row that was proven on the model; another model of its type may have registered its own since."""
    if model in _PROVEN and recorded_row(model.config) is None:
        REGISTERED[model.config.model_type] = _PROVEN[model]


def _try_recorded(model: PreTrainedModel, row: Family, batches: Iterable[Mapping[str, Tensor]], pooling: str) -> None:
    """Raise if a row from a record breaks a law on a dense model of the same config, with random weights."""
    failure: str | None = None
    try:
        dense = _random_model(model)
        kind = kind_of(dense, pooling=pooling)
        error = laws_kept(dense, row, kind, trial_batch(dense, row.layers, batches))[1]
        failure = None if error is None else str(error)
    except (*ERRORS, KpruneError) as error:
        failure = reason(error)
    if failure is not None:
        raise BadCheckpoint(
            f"the record's 'family' does not describe the model ({failure.rstrip('.')}): config.json was changed; "
            "restore the whole folder."
        )


def _random_model(model: PreTrainedModel) -> PreTrainedModel:
    """A dense float32 model of the same class and config; its record holds the row alone."""
    config = copy.deepcopy(model.config)
    record = config.quantization_config
    record = record if isinstance(record, dict) else record.to_dict()
    config.quantization_config = {name: record[name] for name in ("quant_method", "family")}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        dense: PreTrainedModel = type(model)(config).float().eval()
        for parameter in dense.parameters():
            parameter.add_(NOISE * torch.randn_like(parameter))
    return dense
