"""Training of rivals that retrain: batches, losses, and a loop over steps with a limit of epochs or of time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kprune.config import PruneConfig
from kprune.errors import KpruneError, NotFinite
from kprune.maths.losses import divergence, squared_error
from kprune.models.batches import Batch, Sample
from kprune.models.outputs import CLASSIFICATION, REGRESSION, OutputKind, Prediction
from kprune.models.passes import call, forward_with_streams, layers_of
from kprune.models.sublayer import find
from kprune.models.trainable import trainable_parameters
from kprune.pruning.criteria import task_loss
from kprune.pruning.run import Shared
from kprune.runtime.distributed import world_size
from kprune.runtime.memory import guard_memory

BATCH = 32
"""Examples per step."""
RATE = 2e-5
"""Largest learning rate."""
NEW_RATE = 2e-3
"""Largest learning rate of weights that the dense model does not have."""
WARM_UP = 0.1
"""Share of a phase in which the learning rate rises."""
LARGEST_GRADIENT = 1.0


def require_labels(method: str, shared: Shared) -> None:
    """Raise unless every example has a class or a value, and there is one process."""
    kind = shared.predictions.kind.name
    has_labels = all(batch.labels is not None for batch in shared.sample.batches)
    if kind not in (CLASSIFICATION.name, REGRESSION.name) or not has_labels:
        raise KpruneError(
            f"the method {method} trains on labels, and this sample for {kind} has none; pass a class or a "
            "value per text (--task, or --data with --label-column)."
        )
    if world_size() > 1:
        raise KpruneError(f"the method {method} trains in one process; start it without torchrun.")


def training_batches(sample: Sample) -> list[Batch]:
    """The sample's examples in batches of the size of a step; examples of similar length are together."""
    return [
        batch.rows(slice(start, start + BATCH))
        for batch in sample.batches
        for start in range(0, len(batch.example), BATCH)
    ]


@torch.no_grad()
def target_of(kind: OutputKind, teacher: PreTrainedModel, batch: Batch) -> tuple[Prediction, list[Tensor]]:
    """A teacher's outputs on a batch, and its hidden states after each layer."""
    outputs, streams = forward_with_streams(teacher, batch)
    return kind.read(outputs, batch), streams


def distillation_loss(
    kind: OutputKind,
    student: PreTrainedModel,
    target: tuple[Prediction, Sequence[Tensor]],
    batch: Batch,
    hidden_weight: float,
) -> Tensor:
    """Error of the outputs, plus weight times that of the hidden states.

    Outputs: the divergence from the teacher's distribution, or the squared error of values, per example. Hidden states:
    the mean squared error over real tokens and dimensions, summed over the layers of `compared_layers`.
    """
    wanted, states = target
    outputs, streams = forward_with_streams(student, batch)
    rows = kind.read(outputs, batch)
    if kind.is_distribution:
        loss = divergence(rows.values, wanted.values, rows.weights, 1.0).sum()
    else:
        loss = squared_error(rows.values, wanted.values, rows.weights).sum()
    errors = [(batch.real(streams[n]) - batch.real(states[n])).square().mean() for n in compared_layers(student)]
    return loss / len(batch.example) + hidden_weight * torch.stack(errors).sum()


def compared_layers(model: PreTrainedModel) -> list[int]:
    """Numbers of the layers after which hidden states are compared: the last one, and those below a layer with units.

    A layer that stays thus learns what the removed ones above it did, as in DynaBERT's code.
    """
    with_units = {sublayer.index for sublayer in find(model) if sublayer.units}
    return sorted({number - 1 for number in with_units if number} | {len(layers_of(model)) - 1})


def fine_tuning_loss(kind: OutputKind, model: PreTrainedModel, batch: Batch) -> Tensor:
    """The loss of the task, per example, from its labels."""
    rows = kind.read(call(model, batch), batch)
    return task_loss(kind, rows, rows.detach(), batch.labels).mean()


def train(
    model: PreTrainedModel,
    batches: Sequence[Batch],
    backpropagate: Callable[[Batch], None],
    config: PruneConfig,
    seconds: float | None,
    report: Callable[[float], None],
    *,
    phase: int,
    new: Sequence[nn.Parameter] = (),
) -> None:
    """Train a model's layers, norms and head for `config.epochs`, or until the seconds are spent.

    `backpropagate` adds the gradients of a batch. The learning rate rises linearly, then falls to zero; that of `new`
    weights is larger. Each step has its own seed, so that a phase that is repeated has the same result.
    """
    parameters = list(trainable_parameters(model).values())
    for parameter in parameters:
        parameter.requires_grad_(True)
    added = {id(parameter) for parameter in new}
    known = [parameter for parameter in parameters if id(parameter) not in added]
    groups = [{"params": known, "largest": RATE}, {"params": list(new), "largest": NEW_RATE}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=0.0)
    steps = math.ceil((config.epochs or 0.0) * len(batches))
    started, seed = perf_counter(), 1_000_003 * config.seed + 101 * phase
    order: list[int] = []
    for step in range(steps):
        spent = 0.0 if seconds is None else (perf_counter() - started) / max(seconds, 1e-9)
        share = max(step / steps, spent)
        if share >= 1.0:
            break
        report(share)
        for group in optimizer.param_groups:
            group["lr"] = group["largest"] * min(
                share / WARM_UP if step else 1.0 / steps, (1.0 - share) / (1.0 - WARM_UP)
            )
        with guard_memory(), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 10_007 * step)
            order = order or torch.randperm(len(batches)).tolist()
            backpropagate(batches[order.pop()])
        norm = torch.nn.utils.clip_grad_norm_(parameters, LARGEST_GRADIENT)
        if not bool(norm.isfinite()):
            raise NotFinite(f"the gradients of step {step} of the training are not finite; use another seed.")
        optimizer.step()
        optimizer.zero_grad()
    model.requires_grad_(False)
    report(1.0)
