"""The student in training: its optimizer, the best state so far, and the way back from a bad step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.errors import BadCheckpoint
from kprune.models.trainable import trainable_parameters
from kprune.runtime.distributed import all_reduce_sum, world_size

LARGEST_GRADIENT = 1.0
"""Norm to which a step's gradient is cut."""
DIVERGED = 3.0
"""A held-out loss of this many times the pruned model's is a diverged run; the first steps often double it."""
LEAST_SCALE = 2.0**-10
"""Training ends when the learning rate has been halved this far."""


class Training:
    """Weights, optimizer and best state; `state` and `restore` make a resumed run equal to an uninterrupted one."""

    def __init__(self, student: PreTrainedModel) -> None:
        student.requires_grad_(False)
        self.student = student
        self.parameters = trainable_parameters(student)
        for parameter in self.parameters.values():
            parameter.requires_grad_(True)
        self.step = self.best_step = 0
        self.seconds = 0.0
        self.scale = 1.0
        """Factor of the learning rate; halved after each diverged step."""
        self.first_loss = self.best_loss = math.nan
        self.best = self._copies()
        self._start_optimizer()

    def start(self, loss: float) -> None:
        """Note the held-out loss of the untrained student."""
        self.first_loss = self.best_loss = loss

    def update(self, rate: float) -> bool:
        """One step with the gradients of all processes; False if they were not finite, and the student went back."""
        if world_size() > 1:
            for parameter in self._trained:  # a process without a part of the batch has no gradient
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            all_reduce_sum([parameter.grad for parameter in self._trained if parameter.grad is not None])
        norm = torch.nn.utils.clip_grad_norm_(self._trained, LARGEST_GRADIENT)
        is_finite = bool(norm.isfinite())
        if is_finite:
            for group in self._optimizer.param_groups:
                group["lr"] = rate * self.scale
            self._optimizer.step()
        else:
            self.go_back()
        self._optimizer.zero_grad()
        self.step += 1
        return is_finite

    def judge(self, loss: float) -> None:
        """Keep the present state if its held-out loss is the least; go back to the best one if it is far worse."""
        if loss < self.best_loss:
            self.best_loss, self.best_step, self.best = loss, self.step, self._copies()
        elif not loss <= DIVERGED * self.first_loss:
            self.go_back()

    @property
    def is_started(self) -> bool:
        """Whether the untrained student was judged."""
        return not math.isnan(self.first_loss)

    @property
    def is_hopeless(self) -> bool:
        """Whether the learning rate was halved too often."""
        return self.scale < LEAST_SCALE

    @torch.no_grad()
    def go_back(self) -> None:
        """Return to the best state, with half the learning rate and a new optimizer."""
        self.load(self.best)
        self.scale *= 0.5
        self._start_optimizer()

    @torch.no_grad()
    def load(self, values: dict[str, Tensor]) -> None:
        """Set the weights."""
        for name, parameter in self.parameters.items():
            parameter.copy_(values[name])

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and numbers from which training continues."""
        tensors: dict[str, Tensor] = {f"now {name}": parameter for name, parameter in self.parameters.items()}
        tensors |= {f"best {name}": value for name, value in self.best.items()}
        for name, parameter in self.parameters.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer {key} {name}"] = value
        numbers = ("step", "best_step", "seconds", "scale", "first_loss", "best_loss")
        return tensors, {name: getattr(self, name) for name in numbers}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Continue from a state."""
        try:
            self.best = {name: tensors[f"best {name}"].to(each.device) for name, each in self.parameters.items()}
            self.load({name: tensors[f"now {name}"].to(each.device) for name, each in self.parameters.items()})
        except (KeyError, RuntimeError) as error:
            raise BadCheckpoint(f"a checkpoint of healing does not fit the model ({error}); delete it.") from error
        for name, value in numbers.items():
            setattr(self, name, value)
        for key, value in tensors.items():
            kind, _, rest = key.partition(" ")
            if kind == "optimizer":
                entry, _, name = rest.partition(" ")
                parameter = self.parameters[name]
                device = "cpu" if value.dim() == 0 else parameter.device
                self._optimizer.state[parameter][entry] = value.to(device)

    @property
    def _trained(self) -> list[torch.nn.Parameter]:
        return list(self.parameters.values())

    def _copies(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    def _start_optimizer(self) -> None:
        self._optimizer = torch.optim.AdamW(self._trained, lr=0.0, weight_decay=0.0)
