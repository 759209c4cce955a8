"""Checks of a model before it is pruned: its tensors, its layers, and how it computes them."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import chain

from torch import Tensor, nn
from transformers import PreTrainedModel

from kprune.errors import UnsupportedModel
from kprune.models.batches import as_batches
from kprune.models.families import family_of
from kprune.models.native import history_of


def require_prunable(model: PreTrainedModel) -> None:
    """Raise if the model has no values, shares weights between layers, or computes layers in parts.

    A record in its config that was changed is refused, too: its history will be part of the new one.
    """
    history_of(model.config)
    _require_values(model)
    _require_layers_of_their_own(model)
    _require_layer_count(model)
    _require_whole_passes(model)


def without_inference_tensors(model: PreTrainedModel) -> PreTrainedModel:
    """The model itself, or a copy if `torch.inference_mode` made its tensors: those allow no gradients."""
    tensors = chain(model.parameters(), model.buffers())
    return copy.deepcopy(model) if any(tensor.is_inference() for tensor in tensors) else model


def ordinary_batches(batches: Iterable[Mapping[str, Tensor]]) -> Iterator[Mapping[str, Tensor]]:
    """The batches, with copies of the tensors that `torch.inference_mode` made."""
    for batch in as_batches(batches):
        if any(_is_inference(value) for value in batch.values()):
            yield {name: value.clone() if _is_inference(value) else value for name, value in batch.items()}
        else:
            yield batch


def _is_inference(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_inference()


def _require_values(model: PreTrainedModel) -> None:
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_meta:
            raise UnsupportedModel(
                f"{name} is on the meta device and has no values; "
                "load the model with from_pretrained, and without offloading by a device_map."
            )


def _require_layers_of_their_own(model: PreTrainedModel) -> None:
    """Raise if a weight of a layer is also used elsewhere: a resize would change both."""
    layers = family_of(model.config).layers + "."
    names: dict[Hashable, str] = {}
    for name, parameter in model.base_model.named_parameters(remove_duplicate=False):
        if not parameter.numel():
            continue
        other = names.setdefault(_memory_of(parameter), name)
        if other != name and (name.startswith(layers) or other.startswith(layers)):
            raise UnsupportedModel(
                f"{other} and {name} are one weight, and kprune prunes each layer on its own; "
                "give each layer its own copy of the weights."
            )


def _memory_of(parameter: nn.Parameter) -> Hashable:
    """What two parameters have in common if they share memory; they need not be one object."""
    is_plain = type(parameter) is nn.Parameter  # a quantized weight has no pointer
    return (parameter.device, parameter.data_ptr()) if is_plain else id(parameter)


def _require_layer_count(model: PreTrainedModel) -> None:
    layers = family_of(model.config).layers + "."
    names = [name for name, _ in model.base_model.named_modules() if name.startswith(layers)]
    present = len({name.removeprefix(layers).partition(".")[0] for name in names})
    declared = model.config.num_hidden_layers
    if not present:
        raise UnsupportedModel(
            f"a {type(model).__name__} has no layers at {layers[:-1]!r}; load the class that has the encoder."
        )
    if present != declared:
        raise UnsupportedModel(
            f"the model has {present} layers, and its config declares {declared}; "
            f"set config.num_hidden_layers to {present}, so that the pruned model can be loaded."
        )


def _require_whole_passes(model: PreTrainedModel) -> None:
    """Raise if a feed-forward block or attention is computed in a form in which features cannot be read."""
    chunk = max((int(getattr(module, "chunk_size_feed_forward", 0) or 0) for module in model.modules()), default=0)
    if chunk > 0:
        raise UnsupportedModel(
            f"chunk_size_feed_forward is {chunk}, and kprune reads the features of whole texts; "
            "load the model with chunk_size_feed_forward=0, which gives the same outputs."
        )
    attention = getattr(model.config, "_attn_implementation", None)
    if attention == "flex_attention":
        raise UnsupportedModel(
            "the attention implementation is 'flex_attention', which kprune cannot differentiate on every device; "
            "load the model with attn_implementation='sdpa'."
        )
