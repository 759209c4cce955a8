"""Surgery on a model: units are removed, and consumers without a bias may get one."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.pytorch_utils import Conv1D

from kprune.models.family import Block
from kprune.models.head_bias import keep_heads, kept_heads
from kprune.models.sublayer import BiasOnly, Sublayer


class PassThrough(nn.Module):
    """Replaces the module that made an emptied sublayer's features: returns its input.

    Linears of width 0 run in torch but not in ONNX Runtime or OpenVINO; this runs everywhere. A consumer inside the
    replaced module is kept under its own name, and applied.
    """

    def __init__(self, block: Block, consumer: nn.Module, layer_index: int) -> None:
        super().__init__()
        self.consumer_name = block.consumer.removeprefix(block.module + ".") if block.consumer_is_inside else None
        self.returns, self.cache, self.layer_index = block.returns, block.cache, layer_index
        if self.consumer_name is not None:
            *owners, name = self.consumer_name.split(".")
            owner: nn.Module = self
            for part in owners:
                owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            owner.add_module(name, consumer)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get(self.cache)
        if cache is not None:  # an entry counts the tokens seen, but only if it has numbers: one per token
            counted = hidden_states.new_zeros(len(hidden_states), 1, hidden_states.shape[1], 1)
            cache.update(counted, counted, self.layer_index)
        if self.consumer_name is not None:
            hidden_states = self.get_submodule(self.consumer_name)(hidden_states)
        return hidden_states if self.returns == 1 else (hidden_states, *[None] * (self.returns - 1))


class LayerConfig:
    """A layer's view of the config that all layers share: its own counts, and everything else from there."""

    def __init__(self, shared: PreTrainedConfig) -> None:
        self.shared = shared

    def __getattr__(self, name: str) -> Any:
        if name == "shared" or name.startswith("__"):  # not there yet while a copy is made
            raise AttributeError(name)
        return getattr(self.shared, name)


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


def add_bias(sublayer: Sublayer) -> None:
    """Give the consumer a bias of zeros, if it has none; `has_added_bias` then says so."""
    consumer, module = sublayer.consumer, sublayer.layer.get_submodule(sublayer.block.consumer)
    if consumer.bias is None:
        zeros = consumer.weight.new_zeros(consumer.out_features)
        is_trained = next(sublayer.layer.parameters()).requires_grad
        module.register_parameter("bias", nn.Parameter(zeros, requires_grad=is_trained))
        setattr(module, "has_added_bias", True)  # noqa: B010


def drop_zero_bias(sublayer: Sublayer) -> None:
    """Remove an added bias that is zero."""
    bias, module = sublayer.consumer.bias, sublayer.layer.get_submodule(sublayer.block.consumer)
    if sublayer.has_added_bias and bias is not None and not bool(bias.any()):
        module.register_parameter("bias", None)
        setattr(module, "has_added_bias", False)  # noqa: B010


def _select(sublayer: Sublayer, kept: Tensor | slice, count: int) -> None:
    """Keep the units with the given numbers in every projection, and rewrite the counts."""
    units, block = sublayer.units, sublayer.block
    if block.head_bias is not None:
        heads = kept_heads(sublayer)
        keep_heads(sublayer, heads[kept] if isinstance(kept, slice) else [heads[number] for number in kept.tolist()])
    for path, dim in sublayer.parameters.items():
        _replace(sublayer.layer, path, _cut(sublayer.layer.get_parameter(path), dim, units, kept))
    for (path, stack), producer in zip(block.producers.items(), sublayer.producers, strict=True):
        weights = [_cut(part, 0, units, kept) for part in sublayer.split(producer.weight, stack)]
        _replace_weight(sublayer.layer, path, torch.cat(weights))
        if producer.bias is not None:
            biases = [_cut(part, 0, units, kept) for part in sublayer.split(producer.bias, stack)]
            _replace(sublayer.layer, path + ".bias", torch.cat(biases))
    _replace_weight(sublayer.layer, block.consumer, _cut(sublayer.consumer.weight, 1, units, kept))
    _rewrite_counts(sublayer, count)


def _cut(tensor: Tensor, dim: int, units: int, kept: Tensor | slice) -> Tensor:
    """The entries of the kept units along a dimension that is ordered by unit."""
    by_unit: Tensor = tensor.unflatten(dim, (units, -1))
    return by_unit[(*[slice(None)] * dim, kept)].flatten(dim, dim + 1)


def _rewrite_counts(sublayer: Sublayer, units: int) -> None:
    values = {"units": units, "features": sublayer.features, "queries": units * sublayer.queries_per_unit}
    for path, counted in sublayer.block.counts:
        owner_path, _, attribute = path.rpartition(".")
        owner = attrgetter(owner_path)(sublayer.layer)
        if isinstance(owner, PreTrainedConfig):  # all layers share it
            owner = LayerConfig(owner)
            module_path, _, name = owner_path.rpartition(".")
            setattr(sublayer.layer.get_submodule(module_path), name, owner)
        setattr(owner, attribute, values[counted])


def _empty(sublayer: Sublayer) -> None:
    block = sublayer.block
    remaining = BiasOnly(sublayer.consumer)
    bypass = PassThrough(block, remaining, sublayer.index)
    bypass.train(sublayer.layer.training)
    sublayer.layer.set_submodule(block.module, bypass)
    if not block.consumer_is_inside:
        sublayer.layer.set_submodule(block.consumer, remaining)


def _replace_weight(layer: nn.Module, path: str, weight: Tensor) -> None:
    """Set the weight of a Linear, or of a Conv1D, which keeps it as in × out."""
    module = layer.get_submodule(path)
    if isinstance(module, Conv1D):
        _replace(layer, path + ".weight", weight.T)
        module.nx, module.nf = module.weight.shape
    else:
        _replace(layer, path + ".weight", weight)
        module.out_features, module.in_features = weight.shape  # type: ignore[assignment]


def _replace(layer: nn.Module, path: str, value: Tensor) -> None:
    owner, _, name = path.rpartition(".")
    module = layer.get_submodule(owner)
    old: nn.Parameter = getattr(module, name)
    value = value.clone(memory_format=torch.contiguous_format)  # a view would keep the whole dense weight alive
    setattr(module, name, nn.Parameter(value, requires_grad=old.requires_grad))
