"""Which weights of a model healing may train."""

from __future__ import annotations

from itertools import chain

from torch import nn
from transformers import PreTrainedModel

from kprune.models.families import family_of
from kprune.models.passes import layers_of
from kprune.models.sublayer import find


def trainable_parameters(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """Weights of the layers, the norms and the head, by name; embeddings and vocabularies are left out.

    A text shows few of a vocabulary's tokens, so that training would move some embeddings and not others. Vectors that
    scale a sublayer's output are part of its consumer (`models/canonical.py`).
    """
    frozen = {id(parameter) for parameter in _embeddings(model)} | {id(scale) for scale in _output_scales(model)}
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if id(parameter) not in frozen and parameter.numel() and parameter.is_floating_point()
    }


def have_same_streams(model: PreTrainedModel, other: PreTrainedModel) -> bool:
    """Whether both models have as many layers, and hidden states of one width."""
    widths = [{sublayer.consumer.out_features for sublayer in find(each)} for each in (model, other)]
    return widths[0] == widths[1] and len(layers_of(model)) == len(layers_of(other))


def _embeddings(model: PreTrainedModel) -> list[nn.Parameter]:
    path, head = family_of(model.config).embeddings, model.get_output_embeddings()
    modules: list[nn.Module] = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    if path is not None:
        modules.append(model.base_model.get_submodule(path))
    if head is not None:
        modules.append(head)
    return list(chain.from_iterable(module.parameters() for module in modules))


def _output_scales(model: PreTrainedModel) -> list[nn.Parameter]:
    return [
        sublayer.layer.get_parameter(sublayer.block.output_scale)
        for sublayer in find(model)
        if sublayer.block.output_scale is not None
    ]
