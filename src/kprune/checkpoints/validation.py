"""Shapes in safetensors headers, compared with the shapes that a model expects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import MODEL_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, revert_weight_conversion

from kprune.errors import BadCheckpoint
from kprune.models.families import family_of

TOWERS = ("text_model.", "vision_model.")
"""Prefixes under which transformers saves the towers of CLIP."""

Shapes = Mapping[str, tuple[int, ...]]
"""Tensor shapes by tensor name."""


def tensor_shapes(files: Sequence[str | Path]) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors in safetensors files, read from the headers alone."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        if not str(file).endswith(".safetensors"):
            raise BadCheckpoint(f"{file} is not a safetensors file; save the model again as safetensors.")
        try:
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118
                    shapes[_current_name(name)] = tuple(weights.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise BadCheckpoint(f"{file} cannot be read ({error}); copy or save the folder again.") from error
    return shapes


def _current_name(name: str) -> str:
    """The name that transformers gives to a weight of an old checkpoint."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def require_same_layers(model: PreTrainedModel, shapes: Shapes, declared_by: str) -> None:
    """Raise if stored layers differ from the model's in name or shape; `declared_by` names the model's origin.

    Weights outside the layers are not compared: a new head may have another number of labels.
    """
    prefix = model.base_model_prefix + "."
    expected = _expected_shapes(model, shapes)
    layers = _layers_prefix(model, expected)
    in_layers = {name: shape for name, shape in expected.items() if _bare(name, prefix).startswith(layers)}
    bare_names = {_bare(name, prefix) for name in in_layers}
    for name in shapes:
        bare = _bare(name, prefix)
        if bare.startswith(layers) and bare not in bare_names:
            raise BadCheckpoint(
                f"the weights hold {name}, which {declared_by} removes: "
                "the files of this folder do not belong together; restore the whole folder."
            )
    for name, shape in in_layers.items():
        stored = _shape_of(name, shapes, prefix)
        if stored is None:
            raise _missing(name)
        _require_equal(name, stored, shape, declared_by)


def require_same_shapes(model: PreTrainedModel, shapes: Shapes, declared_by: str) -> None:
    """Raise if a stored tensor and the model's parameter differ in shape; `declared_by` names the model's origin."""
    for name, shape in _expected_shapes(model, shapes).items():
        stored = _shape_of(name, shapes, model.base_model_prefix + ".")
        if stored is not None:
            _require_equal(name, stored, shape, declared_by)


def require_complete(model: PreTrainedModel, shapes: Shapes) -> None:
    """Raise if a parameter is not stored under any of its names; poolers may be missing, as they are rarely used."""
    prefix = model.base_model_prefix + "."
    tied = {
        name: {other for other, each in model.named_parameters(remove_duplicate=False) if each is parameter}
        for name, parameter in model.named_parameters()
    }
    for name in _expected_shapes(model, shapes):
        same = tied.get(name, {name})
        if all(_shape_of(other, shapes, prefix) is None for other in same) and ".pooler." not in f".{name}":
            raise _missing(name)


def _expected_shapes(model: PreTrainedModel, stored: Shapes) -> dict[str, tuple[int, ...]]:
    """Shapes of the model's parameters by the names that the files use.

    transformers renames the weights of some families when it loads them, and saves them under their old names.
    """
    own = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    conversions = [
        each for each in get_model_conversion_mapping(model, add_legacy=False) if type(each) is not PrefixChange
    ]
    if not conversions:
        return own
    carrier: Any = SimpleNamespace(_weight_conversions=conversions, config=model.config)
    tensors = {name: parameter.detach().to("meta") for name, parameter in model.named_parameters()}
    old = {name: tuple(tensor.shape) for name, tensor in revert_weight_conversion(carrier, tensors).items()}
    prefix = model.base_model_prefix + "."
    counts = [sum(_shape_of(name, stored, prefix) is not None for name in names) for names in (own, old)]
    return own if counts[0] >= counts[1] else old


def renames_weights(config: PreTrainedConfig) -> bool:
    """Whether transformers renames weights of this model type when it loads them."""
    base = MODEL_MAPPING.get(type(config), None)
    names = [config.model_type, *(each.__name__ for each in (base if isinstance(base, tuple) else (base,)) if each)]
    return any(get_checkpoint_conversion_mapping(name) for name in names)


def _layers_prefix(model: PreTrainedModel, expected: Mapping[str, tuple[int, ...]]) -> str:
    """The path of the list of layers, by the names that the files use."""
    layers, prefix = family_of(model.config).layers + ".", model.base_model_prefix + "."
    bare = [_bare(name, prefix) for name in expected]
    if any(name.startswith(layers) for name in bare):
        return layers
    numbered = (re.match(r"(.*?\.?(?:layers?|blocks?|h)\.)\d+\.", name) for name in bare)
    return next((match[1] for match in numbered if match), layers)


def _require_equal(name: str, stored: tuple[int, ...], shape: tuple[int, ...], declared_by: str) -> None:
    if stored != shape:
        raise BadCheckpoint(
            f"{name} has shape {stored} in the weights and {shape} by {declared_by}: "
            "the files of this folder do not belong together; restore the whole folder."
        )


def _missing(name: str) -> BadCheckpoint:
    return BadCheckpoint(f"{name} is missing from the weights; restore the whole folder.")


def _bare(name: str, prefix: str) -> str:
    """The name without the prefix of a model with a head, or of a tower that was loaded from a model with two."""
    bare = name.removeprefix(prefix)
    for tower in TOWERS:
        bare = bare.removeprefix(tower)
    return bare


def _shape_of(name: str, shapes: Shapes, prefix: str) -> tuple[int, ...] | None:
    # A bare encoder has names without the prefix, a model with a head has it; each loads into the other.
    bare = _bare(name, prefix)
    names = (name, bare, prefix + name, *(tower + bare for tower in TOWERS))
    return next((shapes[each] for each in names if each in shapes), None)
