"""Gates: a small predictor per sublayer that closes units for each input of a model.

A closed unit adds nothing, as if it were removed for this input. The gates are a module of the model and work by hooks,
so that a copy of the model has gates of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kprune.models.hooks import by_example
from kprune.models.sublayer import Sublayer

NAME = "unit_gates"
"""The module's name in the model."""
OPEN_AT_START = 2.0
"""Mean logit of an untrained gate."""


class Gate(nn.Module):
    """Opens or closes groups of a sublayer's units, by the mean of the residual stream over an input's real tokens."""

    costs: Tensor
    columns: Tensor
    threshold: Tensor

    def __init__(self, sublayer: Sublayer, groups: Sequence[Tensor], costs: Tensor) -> None:
        super().__init__()
        width = sublayer.consumer.out_features
        self.read = nn.Linear(width, width // 4)
        self.write = nn.Linear(width // 4, len(groups))
        nn.init.constant_(self.write.bias, OPEN_AT_START)
        numbers = torch.cat([torch.full_like(units, number) for number, units in enumerate(groups)])
        self.register_buffer("columns", numbers.repeat_interleave(sublayer.width), persistent=False)
        self.register_buffer("costs", costs.float(), persistent=False)
        self.register_buffer("threshold", torch.zeros(()))
        self.mask: Tensor | None = None
        self.opened: Tensor | None = None
        sublayer.residual_input.register_forward_pre_hook(self._decide, with_kwargs=True)
        sublayer.consumer.register_forward_pre_hook(self._close)

    @property
    def overhead(self) -> float:
        """FLOPs of the predictor on one input, counted as all others: a multiplication and an addition are two."""
        return 2.0 * (self.read.weight.numel() + self.write.weight.numel())

    def take_cost(self) -> Tensor:
        """Cost of what the last pass left open, (examples,)."""
        assert self.opened is not None
        opened, self.opened = self.opened, None
        return opened @ self.costs

    def _decide(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        shape = None if self.mask is None else self.mask.shape
        stream = by_example(args[0] if args else kwargs["hidden_states"], shape)
        weights = stream.new_ones(stream.shape[:2]) if self.mask is None else self.mask.to(stream)
        pooled = (stream * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
        logits: Tensor = self.write(self.read(pooled).relu()) - self.threshold
        self.opened = _drawn(logits) if self.training else (logits > 0).to(logits)

    def _close(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        assert self.opened is not None
        features = by_example(args[0], None if self.mask is None else self.mask.shape)
        return ((features * self.opened[:, self.columns].unsqueeze(1)).view_as(args[0]), *args[1:])


def _drawn(logits: Tensor) -> Tensor:
    """0 or 1, drawn with the logits' probabilities; the gradient is that of the sigmoid at the draw."""
    uniform = torch.rand_like(logits).clamp(1e-6, 1 - 1e-6)
    soft = (logits + uniform.log() - (-uniform).log1p()).sigmoid()
    return soft + ((soft > 0.5).to(soft) - soft).detach()


class Gates(nn.Module):
    """The gates of all sublayers, and the mean cost of the inputs that the model read since `restart`."""

    def __init__(self, model: PreTrainedModel, sublayers: Sequence[Sublayer], prices: Sequence[Tensor], size: int):
        super().__init__()
        gates = []
        for sublayer, price in zip(sublayers, prices, strict=True):
            groups = torch.arange(sublayer.units).split(size if sublayer.kind == "ffn" else 1)
            costs = torch.stack([price[units[-1] + 1] - price[units[0]] for units in groups])
            gates.append(Gate(sublayer, groups, costs))
        self.gates = nn.ModuleList(gates).to(model.device)
        self.restart()
        model.register_forward_pre_hook(self._note_mask, with_kwargs=True)
        model.register_forward_hook(self._add_up)
        model.add_module(NAME, self)

    @property
    def overhead(self) -> float:
        """FLOPs of all predictors on one input."""
        return sum(gate.overhead for gate in self._each)

    @property
    def mean_cost(self) -> float:
        """Mean cost of what was open, and of the predictors."""
        return self.overhead + self._total / self._inputs

    def restart(self) -> None:
        """Forget the inputs that were read."""
        self._total, self._inputs = 0.0, 0
        self.last: Tensor | None = None

    def set_threshold(self, threshold: float) -> None:
        """Open only the groups whose logit is larger."""
        for gate in self._each:
            gate.threshold.fill_(threshold)

    @property
    def _each(self) -> list[Gate]:
        return list(self.gates)  # type: ignore[arg-type]

    def _note_mask(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        for gate in self._each:
            gate.mask = kwargs.get("attention_mask")

    def _add_up(self, module: nn.Module, args: Any, output: Any) -> None:
        """Note the cost of each input of a pass; during training, `last` has it with its graph."""
        costs = torch.stack([gate.take_cost() for gate in self._each]).sum(0)
        self.last = costs if torch.is_grad_enabled() and self.training else None
        self._total += float(costs.detach().double().sum())
        self._inputs += len(costs)
        for gate in self._each:
            gate.mask = None


def gates_of(model: PreTrainedModel) -> Gates | None:
    """The model's gates, if it has any."""
    found = getattr(model, NAME, None)
    return found if isinstance(found, Gates) else None
