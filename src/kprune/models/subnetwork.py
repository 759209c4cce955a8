"""Smaller models inside a larger one: each of their weights is a part of one of its weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.models.resize import shrink
from kprune.models.sublayer import find


def shrunk(model: PreTrainedModel, keeps: Sequence[Tensor]) -> PreTrainedModel:
    """A copy of the model with the units that the masks keep; one mask for each sublayer that has units."""
    small: PreTrainedModel = copy.deepcopy(model)
    _shrink(small, keeps)
    return small


def _shrink(model: PreTrainedModel, keeps: Sequence[Tensor]) -> None:
    for sublayer, keep in zip([each for each in find(model) if each.units], keeps, strict=True):
        shrink(sublayer, keep)


class Subnetwork:
    """A model of some of a larger model's units: reads the larger one's weights, and adds its gradients to theirs.

    If units are sorted by importance, the best ones are a prefix; here their numbers are listed instead, which gives
    the same networks, and leaves the larger model as it is.
    """

    def __init__(self, model: PreTrainedModel, keeps: Sequence[Tensor]) -> None:
        self.model = shrunk(model, keeps)
        self._whole = dict(model.named_parameters())
        numbered: PreTrainedModel = copy.deepcopy(model)
        for parameter in numbered.parameters():
            numbers = torch.arange(parameter.numel(), dtype=torch.float64, device=parameter.device)
            parameter.data = numbers.view(parameter.shape)
        _shrink(numbered, keeps)
        self._places = {
            name: parameter.detach().flatten().long()
            for name, parameter in numbered.named_parameters()
            if parameter.shape != self._whole[name].shape
        }
        """Of each weight that is smaller, where its entries are in the larger one."""

    @torch.no_grad()
    def load(self) -> None:
        """Take the larger model's present weights; those that it trains are trained here."""
        for name, parameter in self.model.named_parameters():
            whole, places = self._whole[name], self._places.get(name)
            parameter.requires_grad_(whole.requires_grad)
            parameter.copy_(whole if places is None else whole.flatten()[places].view_as(parameter))

    @torch.no_grad()
    def hand_over_gradients(self) -> None:
        """Add the gradients to those of the larger model's weights, and forget them."""
        for name, parameter in self.model.named_parameters():
            whole, places = self._whole[name], self._places.get(name)
            if parameter.grad is None or not whole.requires_grad:
                continue
            if whole.grad is None:
                whole.grad = torch.zeros_like(whole)
            if places is None:
                whole.grad += parameter.grad
            else:
                whole.grad.view(-1)[places] += parameter.grad.flatten()
            parameter.grad = None
