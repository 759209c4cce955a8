"""The canonical form of a model: equal outputs, in which every layer can be cut and restarted on its own.

Two families differ from it: T5's layers share the lowest layer's position biases, and DINOv2 scales each sublayer's
output by a vector. Pruned checkpoints store the canonical form.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from kprune.models.families import family_of
from kprune.models.sublayer import BiasOnly, find


def to_canonical(model: PreTrainedModel) -> None:
    """Bring a model into the canonical form, in place; weights that other models share are replaced, not changed."""
    family = family_of(model.config)
    if family.shared_bias is not None:
        _untie_position_bias(model, family.shared_bias)
    if any(block.output_scale for block in family.blocks.values()):
        _fold_output_scales(model)


class _WithoutBias:
    """Forward pre-hook that drops the bias of the layer below, so that an attention module computes its own."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args, {**kwargs, "position_bias": None}


def _untie_position_bias(model: PreTrainedModel, path: str) -> None:
    """Give every layer's attention a table of position biases of its own, with the values of the lowest layer's."""
    owner_path, _, name = path.rpartition(".")
    owners = [sublayer.layer.get_submodule(owner_path) for sublayer in find(model) if sublayer.kind == "attention"]
    hooks = chain.from_iterable(owner._forward_pre_hooks.values() for owner in owners)
    table: nn.Embedding | None = getattr(owners[0], name, None)
    if table is None or any(isinstance(hook, _WithoutBias) for hook in hooks):
        return  # it is canonical already
    for owner in owners:
        if not hasattr(owner, name):
            own = nn.Embedding(table.num_embeddings, table.embedding_dim, device="meta")
            own.weight = nn.Parameter(table.weight.detach().clone(), requires_grad=table.weight.requires_grad)
            setattr(owner, name, own)
            setattr(owner, "has_relative_attention_bias", True)  # noqa: B010
        owner.register_forward_pre_hook(_WithoutBias(), with_kwargs=True)


def share_position_bias(model: PreTrainedModel) -> None:
    """Let layers share the lowest layer's table of position biases again, in place; all of them must have all heads."""
    path = family_of(model.config).shared_bias
    if path is None:
        return
    owner_path, _, name = path.rpartition(".")
    for sublayer in find(model):
        if sublayer.kind != "attention":
            continue
        owner = sublayer.layer.get_submodule(owner_path)
        for key in [key for key, hook in owner._forward_pre_hooks.items() if isinstance(hook, _WithoutBias)]:
            del owner._forward_pre_hooks[key], owner._forward_pre_hooks_with_kwargs[key]
        if sublayer.index:
            delattr(owner, name)
            setattr(owner, "has_relative_attention_bias", False)  # noqa: B010


@torch.no_grad()
def _fold_output_scales(model: PreTrainedModel) -> None:
    """Multiply every consumer by the vector that scales its output, and set that vector to one."""
    for sublayer in find(model):
        path = sublayer.block.output_scale
        if path is None:
            continue
        scale, consumer = sublayer.layer.get_parameter(path), sublayer.consumer
        if scale.is_meta or bool((scale == 1).all()):
            continue
        owner, _, name = path.rpartition(".")
        for module, attribute, value in (
            (consumer, "weight", None if isinstance(consumer, BiasOnly) else consumer.weight * scale[:, None]),
            (consumer, "bias", None if consumer.bias is None else consumer.bias * scale),
            (sublayer.layer.get_submodule(owner), name, torch.ones_like(scale)),
        ):
            if value is not None:
                setattr(module, attribute, nn.Parameter(value, requires_grad=scale.requires_grad))
