"""A live view of one sublayer of a model."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from operator import attrgetter

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kprune.errors import UnsupportedModel
from kprune.models.families import Block, family_of


class BiasOnly(nn.Module):
    """Replaces an emptied sublayer's consumer: its output is the bias, whatever the input.

    To the maths it is a Linear without columns.
    """

    bias: nn.Parameter | None
    weight: Tensor
    in_features = 0

    def __init__(self, consumer: nn.Linear | BiasOnly) -> None:
        super().__init__()
        self.out_features: int = consumer.out_features
        self.register_parameter("bias", consumer.bias)
        self.register_buffer("weight", consumer.weight.new_empty(self.out_features, 0), persistent=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        zeros = torch.zeros_like(hidden_states)
        return zeros if self.bias is None else zeros + self.bias  # an expanded view could not be written to


@dataclass(frozen=True, eq=False)
class Sublayer:
    """One attention or FFN block: `units` units make `features` features that one `consumer` reads."""

    layer: nn.Module
    index: int
    """Number of the layer, from 0 at the bottom."""
    kind: str
    """`attention` or `ffn`."""
    block: Block

    @property
    def name(self) -> str:
        return f"layer {self.index} {self.kind}"

    @property
    def consumer(self) -> nn.Linear | BiasOnly:
        module = self.layer.get_submodule(self.block.consumer)
        if not isinstance(module, BiasOnly):
            self._require_linear(module, self.block.consumer)
        return module  # type: ignore[return-value]

    @property
    def producers(self) -> list[nn.Linear]:
        modules = [self.layer.get_submodule(path) for path in self.block.producers]
        for module, path in zip(modules, self.block.producers, strict=True):
            self._require_linear(module, path)
        return modules  # type: ignore[return-value]

    @property
    def module(self) -> nn.Module:
        """The module that makes the features; in some families it contains the consumer."""
        return self.layer.get_submodule(self.block.module)

    @property
    def residual_input(self) -> nn.Module:
        """The module whose input is the residual stream at this sublayer."""
        is_removed = not self.units and self.block.residual_input.startswith(self.block.module + ".")
        return self.layer.get_submodule(self.block.module if is_removed else self.block.residual_input)

    @property
    def features(self) -> int:
        return self.consumer.in_features

    @property
    def width(self) -> int:
        """Features per unit: d_h for a head, 1 for a neuron."""
        return prod(int(attrgetter(path)(self.layer)) for path in self.block.unit_width) if self.features else 1

    @property
    def units(self) -> int:
        return self.features // self.width

    @property
    def weights_per_unit(self) -> int:
        """Entries of all projections that belong to one unit."""
        return sum(linear.weight.numel() for linear in (*self.producers, self.consumer)) // self.units

    def _require_linear(self, module: nn.Module, path: str) -> None:
        if type(module) is not nn.Linear:
            raise UnsupportedModel(
                f"cannot prune {self.name}: {path} is of type {type(module).__name__}, not a plain torch Linear; "
                "merge adapters and load the model without quantization first."
            )


def find(model: PreTrainedModel) -> list[Sublayer]:
    """Views of all sublayers of a model, bottom to top; emptied ones have no units."""
    family = family_of(model.config)
    layers = model.base_model.get_submodule(family.layers)
    return [
        Sublayer(layer, index, kind, block)
        for index, layer in enumerate(layers.children())
        for kind, block in family.blocks.items()
    ]
