"""Copies of a model in other shapes, to be timed: what they compute is of no use."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain

from torch import nn
from transformers import PreTrainedModel

from kprune.families import family_of
from kprune.sublayer import Sublayer, find, keep_first


def reshaped(model: PreTrainedModel, units: Callable[[Sublayer], int]) -> PreTrainedModel:
    """A copy whose sublayers keep the first so many of their units."""
    other = sharing(model)
    for sublayer in find(other):
        if sublayer.units:
            keep_first(sublayer, units(sublayer))
    return other


def sharing(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the modules; weights that are not cut later are the model's own."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())})


def emptied(model: PreTrainedModel) -> PreTrainedModel:
    """A copy without any unit: embeddings, norms, residual sums and the head are left."""
    return reshaped(model, lambda sublayer: 0)


def stacked(model: PreTrainedModel, index: int, count: int) -> PreTrainedModel:
    """A copy that has one of the layers so many times and no other; with none, embeddings and head are left.

    Each has weights of its own: shared ones would stay in the caches, and be faster than any real model's.
    """
    other = sharing(model)
    path = family_of(model.config).layers
    layer = list(model.base_model.get_submodule(path).children())[index]
    other.base_model.set_submodule(path, nn.ModuleList(copy.deepcopy(layer) for _ in range(count)))
    return other
