"""Check on a model itself that kprune can prune it: every law of its row, and a row proposed if its type has none."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from kprune.checkpoints.processors import medium_of
from kprune.checkpoints.source import Source
from kprune.data.calibration import python_documentation
from kprune.errors import BadCheckpoint, BadOptions, KpruneError, UnsupportedModel
from kprune.models.batches import Batch
from kprune.models.canonical import to_canonical
from kprune.models.example_inputs import example_inputs
from kprune.models.families import REFUSED, family_of, has_row
from kprune.models.family import INPUTS, Family
from kprune.models.laws import LAWS, LawBroken, require_close, values
from kprune.models.outputs import OutputKind, kind_of
from kprune.models.proposal import ERRORS, reason, trial_batch
from kprune.models.pruned_shape import describe, record_of
from kprune.models.resize import shrink
from kprune.models.row_proof import forget_row, prove_row
from kprune.models.sublayer import find
from kprune.pruning.sampling import require_finite_weights

EXAMPLES, LENGTH = 8, 64
"""Size of the built-in inputs: examples, and tokens per example."""


@dataclass(frozen=True)
class Finding:
    """One law, and how the model breaks it; None: it holds."""

    law: str
    failure: str | None


@dataclass(frozen=True)
class Checked:
    """A model's row and what its laws gave."""

    model_type: str
    row: Family
    is_proposed: bool
    findings: list[Finding]

    @property
    def is_sound(self) -> bool:
        return all(finding.failure is None for finding in self.findings)


def check(model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]], *, pooling: str = "mean") -> Family:
    """The model's row, after all its laws held on these inputs; raises with the first law that does not.

    If the model's type has no row, one is proposed. `kprune.prune` and `kprune.save` then know it in this process, and
    pruned folders keep it in their record.
    """
    checked = check_laws(model, batches, pooling=pooling)
    for finding in checked.findings:
        if finding.failure is not None:
            raise LawBroken(f"the law {finding.law!r} does not hold: {finding.failure}")
    return checked.row


def check_laws(model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]], *, pooling: str = "mean") -> Checked:
    """What every law gives on the model, with a row of the table or a proposed one."""
    config, given = model.config, list(batches)
    if record_of(config) is not None:
        raise UnsupportedModel("the model is pruned already, and laws compare with the dense one; check that one.")
    require_finite_weights(model)
    is_listed = has_row(config)
    if not is_listed:
        prove_row(model, given, pooling=pooling)
    row = family_of(config)
    kind = kind_of(model, pooling=pooling)
    trial = copy.deepcopy(model).float().eval()
    batch = trial_batch(trial, row.layers, given)
    to_canonical(trial)
    # A proposed row has just kept these laws.
    findings = [Finding(name, _failure(law, trial, kind, batch) if is_listed else None) for name, law in LAWS.items()]
    findings.append(Finding("save and load", _failure(check_saving, trial, kind, batch)))
    if not is_listed and findings[-1].failure is not None:
        forget_row(model)
    return Checked(config.model_type, row, not is_listed, findings)


def _failure(law: Any, model: PreTrainedModel, kind: OutputKind, batch: Batch) -> str | None:
    try:
        law(model, kind, batch)
    except KpruneError as error:
        return str(error)
    except ERRORS as error:
        return f"the model does not run ({reason(error)})."
    return None


@torch.no_grad()
def check_saving(model: PreTrainedModel, kind: OutputKind, batch: Batch) -> None:
    """Law: a model with other numbers of units in every layer computes the same after it is saved and loaded."""
    small = copy.deepcopy(model)
    sublayers = find(small)
    for number, sublayer in enumerate(sublayers):
        # The lowest FFN and the topmost attention lose all units, other sublayers about half.
        left = 0 if number in (1, len(sublayers) - 2) else max(1, (sublayer.units + number % 2) // 2)
        shrink(sublayer, torch.arange(sublayer.units) >= sublayer.units - left)
    small.config.quantization_config = describe(small, [])
    with TemporaryDirectory() as folder:
        small.save_pretrained(folder)
        loaded: Any = type(model).from_pretrained(folder)
    expected = values(small, kind, batch)
    require_close("a saved and loaded model is not the model", values(loaded.to(model.device), kind, batch), expected)


def check_model(source: Source, texts: Sequence[str] | None = None) -> Checked:
    """What every law gives on a model folder, with these texts or built-in inputs."""
    config = source.load_config()
    if has_row(config) or config.model_type in REFUSED:
        family_of(config)  # raises before weights are read
    if texts is not None and (medium := medium_of(source)) is not None:
        raise BadOptions(f"--text is for models of text, and {source.title} reads {medium.name}; leave it out.")
    model = source.load() if has_row(config) else load_without_row(source, config)
    return check_laws(model, [sample_inputs(source, model, texts)], pooling=source.pooling)


def load_checked(source: Source, texts: Sequence[str] = ()) -> tuple[PreTrainedModel, Family | None]:
    """The model of a folder; if its type has no row, with the row that was proposed for it and kept every law."""
    config = source.load_config()
    if has_row(config) or config.model_type in REFUSED:
        family_of(config)  # raises before weights are read if the type is refused
        return source.load(), None
    model = load_without_row(source, config)
    row = check(model, [sample_inputs(source, model, texts or None)], pooling=source.pooling)
    source.require_layers(config)
    return model, row


def ensure_row(source: Source) -> None:
    """Propose and register a row for a folder whose model type has none; the weights are read only then."""
    config = source.load_config()
    if has_row(config) or config.model_type in REFUSED:
        family_of(config)  # raises if the type is refused
    else:
        load_checked(source)


def load_without_row(source: Source, config: PreTrainedConfig) -> PreTrainedModel:
    """A dense model whose type has no row; `Source.load` compares weights with the row as well."""
    source.require_checkpoint()
    return source.load_weights(config)


def sample_inputs(source: Source, model: PreTrainedModel, texts: Sequence[str] | None = None) -> dict[str, Tensor]:
    """A few inputs: texts through the folder's tokenizer, or noise for a model that reads images or sound."""
    name, config = model.main_input_name, model.config
    if name == "input_ids":
        tokenizer = source.load_tokenizer()
        chosen = list(python_documentation() if texts is None else texts)[:EXAMPLES]
        length = min(LENGTH, int(tokenizer.model_max_length))
        encoded = tokenizer(chosen, truncation=True, max_length=length, padding=True, return_tensors="pt")
        return {key: value.to(model.device) for key, value in encoded.items()}
    if name not in INPUTS:
        raise BadCheckpoint(f"the model reads {name!r}, and kprune reads {', '.join(INPUTS)}; use another model.")
    return {key: value.to(model.device) for key, value in example_inputs(name, config, EXAMPLES // 2).items()}
