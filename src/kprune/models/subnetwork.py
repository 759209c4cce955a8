"""Smaller models inside a larger one: each of their weights is a part of one of its weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.models.resize import shrink
from kprune.models.sublayer import find
from kprune.models.trainable import trainable_parameters


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
    the same networks, and leaves the larger model as it is. Both share the weights that healing would not train.
    """

    def __init__(self, model: PreTrainedModel, keeps: Sequence[Tensor]) -> None:
        trained = {id(parameter) for parameter in trainable_parameters(model).values()}
        shared = {id(each): each for each in model.parameters() if id(each) not in trained}
        self.model: PreTrainedModel = copy.deepcopy(model, dict(shared))
        _shrink(self.model, keeps)
        numbered: PreTrainedModel = copy.deepcopy(model, dict(shared))
        for parameter in numbered.parameters():
            if id(parameter) not in shared:
                numbers = torch.arange(parameter.numel(), dtype=torch.float64, device=parameter.device)
                parameter.data = numbers.view(parameter.shape)
        _shrink(numbered, keeps)
        whole, places = dict(model.named_parameters()), dict(numbered.named_parameters())
        self._weights = [
            (part, whole[name], None if part.shape == whole[name].shape else places[name].detach().flatten().long())
            for name, part in self.model.named_parameters()
            if part is not whole[name]
        ]
        """Each weight, the larger model's, and where its entries are there; None: it is as large."""

    @torch.no_grad()
    def load(self) -> None:
        """Take the larger model's present weights; those that it trains are trained here."""
        for part, whole, places in self._weights:
            part.requires_grad_(whole.requires_grad)
            part.copy_(whole if places is None else whole.flatten()[places].view_as(part))

    @torch.no_grad()
    def hand_over_gradients(self) -> None:
        """Add the gradients to those of the larger model's weights, and forget them."""
        for part, whole, places in self._weights:
            if part.grad is None:
                continue
            if whole.grad is None:
                whole.grad = torch.zeros_like(whole)
            if places is None:
                whole.grad += part.grad
            else:
                whole.grad.view(-1)[places] += part.grad.flatten()
            part.grad = None
