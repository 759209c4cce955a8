"""Copies of a model in other shapes, made only to be timed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain

from torch import nn
from transformers import PreTrainedModel

from kprune.models.canonical import to_canonical
from kprune.models.families import family_of
from kprune.models.resize import keep_first
from kprune.models.sublayer import Sublayer, find


def reshaped(model: PreTrainedModel, units: Callable[[Sublayer], int]) -> PreTrainedModel:
    """A copy in which each sublayer keeps its first `units(sublayer)` units."""
    other = copy_sharing_weights(model)
    to_canonical(other)
    for sublayer in find(other):
        if sublayer.units:
            keep_first(sublayer, units(sublayer))
    return other


def emptied(model: PreTrainedModel) -> PreTrainedModel:
    """A copy without any unit: embeddings, norms, residual sums and the head remain."""
    return reshaped(model, lambda sublayer: 0)


def stacked(model: PreTrainedModel, index: int, count: int) -> PreTrainedModel:
    """A copy whose layers are `count` copies of layer `index`; with 0, only embeddings and head remain.

    Each copy has its own weights: shared weights would stay in the caches and be faster than in any real model.
    """
    other = copy_sharing_weights(model)
    to_canonical(other)
    path = family_of(model.config).layers
    layer = list(other.base_model.get_submodule(path).children())[index]
    other.base_model.set_submodule(path, nn.ModuleList(copy.deepcopy(layer) for _ in range(count)))
    other.config.num_hidden_layers = count  # some decoders run only as many layers as the config has
    return other


def copy_sharing_weights(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the modules that shares parameters and buffers with the model until they are replaced."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())})
