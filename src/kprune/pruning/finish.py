"""The end of a run: the student gets the model's dtypes, is checked, and gets its record."""

from __future__ import annotations

from itertools import chain

import torch
from torch import nn
from transformers import PreTrainedModel

from kprune.errors import NotFinite
from kprune.models.batches import Sample
from kprune.models.native import become_native, history_of
from kprune.models.outputs import OutputKind
from kprune.models.passes import call
from kprune.models.pruned_shape import describe
from kprune.pruning.result import Pruned
from kprune.runtime.distributed import all_true
from kprune.runtime.memory import guard_memory

CHECKED_BATCHES = 8
"""Batches, of all lengths, on which a finished student is checked."""
CHECKED_EXAMPLES = 2
"""Examples per batch, the longest ones."""


def hand_over(student: PreTrainedModel, model: PreTrainedModel) -> None:
    """Give the student the dtypes and `requires_grad` of the model that it was made from."""
    given = dict(chain(model.named_parameters(), model.named_buffers()))
    first = next(model.parameters())  # for tensors that only the student has, such as added biases
    for name, tensor in chain(student.named_parameters(), student.named_buffers()):
        own = given.get(name, given.get(name.removesuffix("bias") + "weight", first))
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(own.dtype)
        if isinstance(tensor, nn.Parameter):
            tensor.requires_grad_(own.requires_grad)
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise NotFinite(f"the refitted {name} does not fit into {tensor.dtype}; load the model in float32.")


@torch.no_grad()
def require_finite_outputs(student: PreTrainedModel, sample: Sample, kind: OutputKind) -> None:
    """Raise if the student's outputs are not finite on the longest examples of batches of all lengths."""
    batches = sample.batches[:: -(-len(sample.batches) // CHECKED_BATCHES)]
    is_finite = True
    with guard_memory():
        for batch in (batch.rows(slice(-CHECKED_EXAMPLES, None)) for batch in batches):
            values = kind.read(call(student, batch), batch).values
            rows = values.isfinite().any(-1) & ~(values.isnan() | values.isposinf()).any(-1)
            is_finite &= bool(rows.all())
    if not all_true(is_finite):
        raise NotFinite(
            f"the pruned model's outputs are not finite (NaN or infinity) in {student.dtype}; "
            "remove less, use more text, or load the model in float32."
        )


def attach_record(pruned: Pruned) -> None:
    """Store the pruning record in the model's config."""
    config = pruned.model.config
    history = [*history_of(config), pruned.summary()]
    record = describe(pruned.model, history)
    if pruned.config.native and record is not None:
        become_native(pruned.model, history)
    elif record is not None:
        config.quantization_config = record
