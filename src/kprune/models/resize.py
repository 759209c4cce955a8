"""Removal of units: the only surgery done on a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kprune.models.head_bias import keep_heads, kept_heads
from kprune.models.sublayer import BiasOnly, Sublayer


class PassThrough(nn.Module):
    """Replaces the module that made an emptied sublayer's features: returns its input.

    Linears of width 0 run in torch but not in ONNX Runtime or OpenVINO; this runs everywhere. A consumer inside the
    replaced module is kept under its own name, and applied.
    """

    def __init__(self, consumer_name: str | None, consumer: nn.Module, returns_tuple: bool) -> None:
        super().__init__()
        self.consumer_name = consumer_name
        self.returns_tuple = returns_tuple
        if consumer_name is not None:
            self.add_module(consumer_name, consumer)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.consumer_name is not None:
            hidden_states = self.get_submodule(self.consumer_name)(hidden_states)
        return (hidden_states, None) if self.returns_tuple else hidden_states


def columns_of(keep: Tensor, width: int) -> Tensor:
    """Indices of the features that belong to the kept units; `keep` is a boolean mask over units."""
    return keep.repeat_interleave(width).nonzero().squeeze(1)


@torch.no_grad()
def shrink(sublayer: Sublayer, keep: Tensor) -> None:
    """Remove every unit that `keep`, a boolean mask over units, leaves out."""
    if keep.all():
        return
    if not keep.any():
        _empty(sublayer)
        return
    kept = keep.nonzero().squeeze(1).to(sublayer.consumer.weight.device)
    _select(sublayer, kept, len(kept))


@torch.no_grad()
def keep_first(sublayer: Sublayer, units: int) -> None:
    """Remove all units but the first `units`; by slices, so that models on the meta device take no memory."""
    if units == 0 < sublayer.units:
        _empty(sublayer)
    elif units < sublayer.units:
        _select(sublayer, slice(units), units)


def _select(sublayer: Sublayer, kept: Tensor | slice, count: int) -> None:
    """Keep the units with the given numbers in every projection, and rewrite the counts."""
    units, width = sublayer.units, sublayer.width
    if sublayer.block.head_bias is not None:
        heads = kept_heads(sublayer)
        keep_heads(sublayer, heads[kept] if isinstance(kept, slice) else [heads[number] for number in kept.tolist()])
    for producer, stacked in zip(sublayer.producers, sublayer.block.producers.values(), strict=True):
        # Rows are ordered by stacked matrix, unit and row of the unit.
        _replace(producer, "weight", producer.weight.unflatten(0, (stacked, units, -1))[:, kept].flatten(0, 2))
        if producer.bias is not None:
            _replace(producer, "bias", producer.bias.unflatten(0, (stacked, units, -1))[:, kept].flatten())
        producer.out_features = len(producer.weight)
    consumer = sublayer.consumer
    _replace(consumer, "weight", consumer.weight.unflatten(1, (units, width))[:, kept].flatten(1))
    consumer.in_features = consumer.weight.shape[1]
    _rewrite_counts(sublayer, count)


def _rewrite_counts(sublayer: Sublayer, units: int) -> None:
    values = {"units": units, "features": units * sublayer.width}
    for path, counted in sublayer.block.counts:
        owner, _, attribute = path.rpartition(".")
        setattr(sublayer.layer.get_submodule(owner), attribute, values[counted])


def _empty(sublayer: Sublayer) -> None:
    block = sublayer.block
    remaining = BiasOnly(sublayer.consumer)
    name = block.consumer.removeprefix(block.module + ".") if block.consumer_is_inside else None
    bypass = PassThrough(name, remaining, block.returns_tuple)
    bypass.train(sublayer.layer.training)
    sublayer.layer.set_submodule(block.module, bypass)
    if not block.consumer_is_inside:
        sublayer.layer.set_submodule(block.consumer, remaining)


def _replace(module: nn.Module, name: str, value: Tensor) -> None:
    old: nn.Parameter = getattr(module, name)
    # clone(): a slice is otherwise a view that keeps the whole dense weight alive.
    setattr(module, name, nn.Parameter(value.clone(), requires_grad=old.requires_grad))
