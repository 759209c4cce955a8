"""A pruned model: its layers have fewer heads and neurons than config.json says, as its pruning record counts.

AutoModel.from_pretrained(folder, trust_remote_code=True) loads it with torch and transformers alone. kprune writes this
file, under the Apache License 2.0; the layout of the layers and the classes are at its end.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import transformers
from torch import Tensor, nn, zeros, zeros_like
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING


class BiasOnly(nn.Module):
    """The last Linear of a sublayer without units: its output is the bias."""

    bias: nn.Parameter | None

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        bias: Any = linear.bias
        self.register_parameter("bias", bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return zeros_like(hidden_states) if self.bias is None else zeros_like(hidden_states) + self.bias


class PassThrough(nn.Module):
    """The rest of a sublayer without units: it returns its input, or what a last Linear inside it returns."""

    def __init__(self, returns: int, index: int, inside: str | None, last: nn.Module, cache: str) -> None:
        super().__init__()
        self.returns, self.index, self.inside, self.cache = returns, index, inside, cache
        if inside:
            self.add_module(inside, last)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get(self.cache)
        if cache is not None:  # it counts the tokens seen
            counted = hidden_states.new_zeros(len(hidden_states), 1, hidden_states.shape[1], 1)
            cache.update(counted, counted, self.index)
        if self.inside:
            hidden_states = self.get_submodule(self.inside)(hidden_states)
        return hidden_states if self.returns == 1 else (hidden_states, *[None] * (self.returns - 1))


class KeptHeads:
    """Selects the kept heads in a position bias that all layers share."""

    def __init__(self, module: nn.Module, argument: str, kept: Sequence[int]) -> None:
        self.argument, self.kept = argument, kept
        self.position = list(inspect.signature(module.forward).parameters).index(argument)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get(self.argument) is not None:
            return args, {**kwargs, self.argument: kwargs[self.argument][:, self.kept]}
        if len(args) > self.position and args[self.position] is not None:
            args = (*args[: self.position], args[self.position][:, self.kept], *args[self.position + 1 :])
        return args, kwargs


def own_position_bias(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Drop the position bias of the layer below: every layer has a table of its own."""
    return args, {**kwargs, "position_bias": None}


def resize(model: transformers.PreTrainedModel, layers: str, blocks: dict[str, Any]) -> None:
    """Give every layer of a dense model the heads and neurons that its pruning record counts."""
    record = model.config.quantization_config
    record = record if isinstance(record, dict) else record.to_dict()
    if record["quant_method"] in AUTO_QUANTIZATION_CONFIG_MAPPING:
        return  # kprune is imported, and resizes the model
    with_kept_heads = iter(record.get("kept_heads", ()))
    for index, layer in enumerate(model.base_model.get_submodule(layers).children()):
        for kind, block in blocks.items():
            units = record["per_layer"][index][kind]
            consumer: Any = layer.get_submodule(block["consumer"])
            kept = next(with_kept_heads) if "head_bias" in block else None
            if kind in record.get("biased", [()] * (index + 1))[index]:
                consumer.bias = nn.Parameter(zeros(consumer.weight.shape[0], device=consumer.weight.device))
            if "shared_bias" in block:
                share_no_longer(layer, *block["shared_bias"])
            if units == 0:
                empty(layer, index, block)
            elif units < block["units"]:
                narrow(layer, block, units)
                if kept is not None:
                    module = layer.get_submodule(block["module"])
                    module.register_forward_pre_hook(KeptHeads(module, block["head_bias"], kept), with_kwargs=True)


def narrow(layer: nn.Module, block: dict[str, Any], units: int) -> None:
    """Keep as many rows or columns of every weight as belong to `units` units, and rewrite the counts."""
    for path, dim in block["parameters"].items():
        owner_path, _, name = path.rpartition(".")
        owner: Any = layer.get_submodule(owner_path)
        weight = getattr(owner, name)
        size = weight.shape[dim] * units // block["units"]
        setattr(owner, name, nn.Parameter(weight.detach().narrow(dim, 0, size).clone()))
        if isinstance(owner, Conv1D):
            owner.nx, owner.nf = owner.weight.shape
        elif isinstance(owner, nn.Linear):
            owner.out_features, owner.in_features = owner.weight.shape
    for path in block["counts"]:
        owner_path, _, name = path.rpartition(".")
        owner = attrgetter(owner_path)(layer)
        if isinstance(owner, transformers.PreTrainedConfig):  # all layers share it
            owner = copy.copy(owner)
            module_path, _, attribute = owner_path.rpartition(".")
            setattr(layer.get_submodule(module_path), attribute, owner)
        setattr(owner, name, getattr(owner, name) * units // block["units"])


def empty(layer: nn.Module, index: int, block: dict[str, Any]) -> None:
    """Replace a sublayer by the bias that it adds."""
    last, module, consumer = BiasOnly(layer.get_submodule(block["consumer"])), block["module"], block["consumer"]
    inside = consumer.removeprefix(module + ".") if consumer.startswith(module + ".") else None
    layer.set_submodule(module, PassThrough(block["returns"], index, inside, last, block["cache"]))
    if inside is None:
        layer.set_submodule(consumer, last)


def share_no_longer(layer: nn.Module, path: str, heads: int, buckets: int) -> None:
    """Give an attention module a table of position biases of its own."""
    owner_path, _, name = path.rpartition(".")
    owner: Any = layer.get_submodule(owner_path)
    owner.register_forward_pre_hook(own_position_bias, with_kwargs=True)
    owner.has_relative_attention_bias = True
    if not hasattr(owner, name):
        setattr(owner, name, nn.Embedding(buckets, heads))
