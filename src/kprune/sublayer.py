"""A live view of one sublayer of a model, and the only surgery done on it."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kprune.errors import UnsupportedModel
from kprune.families import Slot, family_of


class PassThrough(nn.Module):
    """Takes the place of the block that made an emptied sublayer's features: hands the stream on.

    Linears of width 0 run in torch but not in ONNX Runtime or OpenVINO; this runs everywhere. Where the consumer lies
    inside the block it is kept, under its own name, and applied.
    """

    def __init__(self, consumer_name: str | None, consumer: nn.Module, returns_weights: bool) -> None:
        super().__init__()
        self.consumer_name = consumer_name
        self.returns_weights = returns_weights
        if consumer_name is not None:
            self.add_module(consumer_name, consumer)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.consumer_name is not None:
            hidden_states = self.get_submodule(self.consumer_name)(hidden_states)
        return (hidden_states, None) if self.returns_weights else hidden_states


class BiasOnly(nn.Module):
    """Takes the place of an emptied sublayer's consumer: whatever the stream, its output is the bias.

    To the maths it is a Linear without columns.
    """

    bias: nn.Parameter | None
    in_features = 0

    def __init__(self, consumer: nn.Linear | BiasOnly) -> None:
        super().__init__()
        self.out_features: int = consumer.out_features
        self.register_parameter("bias", consumer.bias)

    @property
    def weight(self) -> Tensor:
        like = torch.get_default_dtype() if self.bias is None else self.bias.dtype
        device = None if self.bias is None else self.bias.device
        return torch.empty(self.out_features, 0, dtype=like, device=device)

    def forward(self, hidden_states: Tensor) -> Tensor:
        zeros = torch.zeros_like(hidden_states)
        return zeros if self.bias is None else zeros + self.bias  # an expanded view of it could be written to


@dataclass(frozen=True, eq=False)
class Sublayer:
    """One attention or feed-forward block: `units` units make `features` features that one `consumer` reads."""

    layer: nn.Module
    index: int
    """The layer's number, from 0 at the bottom."""
    kind: str
    """`attention` or `ffn`."""
    slot: Slot

    @property
    def name(self) -> str:
        return f"layer {self.index} {self.kind}"

    @property
    def consumer(self) -> nn.Linear | BiasOnly:
        module = self.layer.get_submodule(self.slot.consumer)
        if not isinstance(module, BiasOnly):
            _require_linear(module, self.slot.consumer, self.name)
        return module  # type: ignore[return-value]

    @property
    def producers(self) -> list[nn.Linear]:
        modules = [self.layer.get_submodule(path) for path in self.slot.producers]
        for module, path in zip(modules, self.slot.producers, strict=True):
            _require_linear(module, path, self.name)
        return modules  # type: ignore[return-value]

    @property
    def block(self) -> nn.Module:
        """The module that makes the features, and holds the consumer in some families."""
        return self.layer.get_submodule(self.slot.block)

    @property
    def scaling(self) -> float | None:
        """What attention scores are scaled by, where they are no more than products of queries and keys."""
        return attrgetter(self.slot.scaling)(self.layer) if self.slot.scaling else None

    @property
    def stream_reader(self) -> nn.Module:
        """The module whose input is the residual stream at this sublayer."""
        gone = not self.units and self.slot.stream.startswith(self.slot.block + ".")
        return self.layer.get_submodule(self.slot.block if gone else self.slot.stream)

    @property
    def features(self) -> int:
        return self.consumer.in_features

    @property
    def width(self) -> int:
        """Features per unit: d_h for a head, 1 for a neuron."""
        return attrgetter(self.slot.width)(self.layer) if self.slot.width and self.features else 1

    @property
    def units(self) -> int:
        return self.features // self.width

    @property
    def weights_per_unit(self) -> int:
        """Entries of all projections that belong to one unit."""
        return sum(linear.weight.numel() for linear in (*self.producers, self.consumer)) // self.units


def find(model: PreTrainedModel) -> list[Sublayer]:
    """Views of all sublayers of a model, bottom to top; emptied ones have no units."""
    family = family_of(model.config)
    layers = model.base_model.get_submodule(family.layers)
    return [
        Sublayer(layer, index, kind, slot)
        for index, layer in enumerate(layers.children())
        for kind, slot in family.slots.items()
    ]


def columns_of(keep: Tensor, width: int) -> Tensor:
    """Indices of the features that belong to the kept units; `keep` is a boolean mask over units."""
    return keep.repeat_interleave(width).nonzero().squeeze(1)


@torch.no_grad()
def shrink(sublayer: Sublayer, keep: Tensor) -> None:
    """Remove every unit that `keep`, a boolean mask over units, leaves out, by making the Linears smaller."""
    if keep.all():
        return
    if not keep.any():
        _empty(sublayer)
        return
    _select(sublayer, columns_of(keep, sublayer.width).to(sublayer.consumer.weight.device))


def keep_first(sublayer: Sublayer, units: int) -> None:
    """Remove all units but the first, without a mask: a skeleton may be of any size, and takes no memory."""
    if units == 0 < sublayer.units:
        _empty(sublayer)
    elif units < sublayer.units:
        _select(sublayer, slice(units * sublayer.width))


def _select(sublayer: Sublayer, columns: Tensor | slice) -> None:
    for producer in sublayer.producers:
        _replace(producer, "weight", producer.weight[columns])
        if producer.bias is not None:
            _replace(producer, "bias", producer.bias[columns])
        producer.out_features = len(producer.weight)
    consumer = sublayer.consumer
    _replace(consumer, "weight", consumer.weight[:, columns])
    consumer.in_features = consumer.weight.shape[1]


def _empty(sublayer: Sublayer) -> None:
    slot = sublayer.slot
    remaining = BiasOnly(sublayer.consumer)
    name = slot.consumer.removeprefix(slot.block + ".") if slot.consumer_is_inside else None
    bypass = PassThrough(name, remaining, slot.returns_weights)
    bypass.train(sublayer.layer.training)
    sublayer.layer.set_submodule(slot.block, bypass)
    if not slot.consumer_is_inside:
        sublayer.layer.set_submodule(slot.consumer, remaining)


def _replace(module: nn.Module, name: str, value: Tensor) -> None:
    old: nn.Parameter = getattr(module, name)
    # clone(): a slice of columns is otherwise a view that keeps the whole dense weight alive.
    setattr(module, name, nn.Parameter(value.clone(), requires_grad=old.requires_grad))


def _require_linear(module: nn.Module, path: str, sublayer: str) -> None:
    if type(module) is not nn.Linear:
        raise UnsupportedModel(
            f"cannot prune {sublayer}: {path} is a {type(module).__name__}, not a plain torch Linear; "
            "merge adapters and load the model unquantised first."
        )
