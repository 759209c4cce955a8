"""A live view of one sublayer of a model."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kprune.errors import UnsupportedModel
from kprune.models.families import family_of
from kprune.models.family import Block, Family, Stack


class BiasOnly(nn.Module):
    """Replaces an emptied sublayer's consumer: its output is the bias, whatever the input.

    To the maths it is a Linear without columns.
    """

    bias: nn.Parameter | None
    weight: Tensor
    in_features = 0

    def __init__(self, consumer: Projection | BiasOnly) -> None:
        super().__init__()
        self.out_features: int = consumer.out_features
        self.has_added_bias: bool = getattr(consumer, "has_added_bias", False)
        self.register_parameter("bias", consumer.bias)
        self.register_buffer("weight", consumer.weight.new_empty(self.out_features, 0), persistent=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        zeros = torch.zeros_like(hidden_states)
        return zeros if self.bias is None else zeros + self.bias  # an expanded view could not be written to


class TransposedLinear:
    """A Conv1D of GPT-2, whose weight is in × out, with the attributes of a Linear; its weight is a view."""

    def __init__(self, module: Conv1D) -> None:
        self.module = module

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.module.weight.T
        return weight

    @property
    def bias(self) -> nn.Parameter | None:
        bias: nn.Parameter | None = self.module.bias
        return bias

    @property
    def out_features(self) -> int:
        return len(self.weight)

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    def __call__(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.module(inputs)
        return output

    def register_forward_pre_hook(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.register_forward_pre_hook(*args, **kwargs)

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.register_forward_hook(*args, **kwargs)


Projection = nn.Linear | TransposedLinear


@dataclass(frozen=True, eq=False)
class Sublayer:
    """One attention or FFN block: `units` units make `features` features that one `consumer` reads."""

    layer: nn.Module
    index: int
    """Number of the layer, from 0 at the bottom."""
    kind: str
    """`attention` or `ffn`."""
    family: Family

    @property
    def block(self) -> Block:
        return self.family.blocks[self.kind]

    @property
    def name(self) -> str:
        return f"layer {self.index} {self.kind}"

    @property
    def consumer(self) -> Projection | BiasOnly:
        module = self.layer.get_submodule(self.block.consumer)
        return module if isinstance(module, BiasOnly) else self._projection(self.block.consumer)

    @property
    def has_added_bias(self) -> bool:
        """Whether the consumer's bias is one that the dense model does not have."""
        return bool(getattr(self.consumer, "has_added_bias", False))

    @property
    def producers(self) -> list[Projection]:
        return [self._projection(path) for path in self.block.producers]

    def heights(self, stack: Stack) -> list[int]:
        """Relative heights of the matrices that are stacked in one weight."""
        if isinstance(stack, int):
            return [1] * stack
        return [self._number(part) for part in stack]

    def _number(self, value: int | str) -> int:
        """A number, or the value of an attribute of the layer."""
        return value if isinstance(value, int) else int(attrgetter(value)(self.layer))

    def split(self, rows: Tensor, stack: Stack) -> tuple[Tensor, ...]:
        """The rows of each of the stacked matrices, (rows, …); each matrix has its rows ordered by unit."""
        heights = self.heights(stack)
        parts: tuple[Tensor, ...] = rows.split([height * (len(rows) // sum(heights)) for height in heights])
        return parts

    @property
    def parameters(self) -> dict[str, int]:
        """The block's further parameters that the layer has, each with the dimension that is divided among units."""
        present = dict(self.layer.named_parameters())
        return {path: dim for path, dim in self.block.parameters.items() if path in present}

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
        return prod(map(self._number, self.block.unit_width)) if self.features else 1

    @property
    def units(self) -> int:
        return self.features // self.width

    @property
    def queries_per_unit(self) -> int:
        """Query heads of a unit: several with grouped queries, else one."""
        return prod(map(self._number, self.block.unit_width[1:]))

    @property
    def weights_per_unit(self) -> int:
        """Entries of all projections that belong to one unit."""
        return sum(linear.weight.numel() for linear in (*self.producers, self.consumer)) // self.units

    def _projection(self, path: str) -> Projection:
        module = self.layer.get_submodule(path)
        if type(module) is Conv1D:
            return TransposedLinear(module)
        if type(module) is not nn.Linear:
            raise UnsupportedModel(
                f"cannot prune {self.name}: {path} is of type {type(module).__name__}, not a plain torch Linear; "
                "merge adapters and load the model without quantization first."
            )
        return module


def find(model: PreTrainedModel) -> list[Sublayer]:
    """Views of all sublayers of a model, bottom to top; emptied ones have no units."""
    family = family_of(model.config)
    layers = model.base_model.get_submodule(family.layers)
    return [
        Sublayer(layer, index, kind, family) for index, layer in enumerate(layers.children()) for kind in family.blocks
    ]
