"""Shapes in safetensors headers, compared with the shapes that a model expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel

from kprune.errors import BadCheckpoint
from kprune.models.families import family_of

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
    layers = family_of(model.config).layers + "."
    parameters = {
        name: parameter for name, parameter in model.named_parameters() if name.removeprefix(prefix).startswith(layers)
    }
    expected = {name.removeprefix(prefix) for name in parameters}
    for name in shapes:
        bare = name.removeprefix(prefix)
        if bare.startswith(layers) and bare not in expected:
            raise BadCheckpoint(
                f"the weights hold {name}, which {declared_by} removes: "
                "the files of this folder do not belong together; restore the whole folder."
            )
    for name, parameter in parameters.items():
        stored = _shape_of(name, shapes, prefix)
        if stored is None:
            raise _missing(name)
        _require_equal(name, stored, parameter, declared_by)


def require_same_shapes(model: PreTrainedModel, shapes: Shapes, declared_by: str) -> None:
    """Raise if a stored tensor and the model's parameter differ in shape; `declared_by` names the model's origin."""
    for name, parameter in model.named_parameters():
        stored = _shape_of(name, shapes, model.base_model_prefix + ".")
        if stored is not None:
            _require_equal(name, stored, parameter, declared_by)


def require_complete(model: PreTrainedModel, shapes: Shapes) -> None:
    """Raise if a parameter is not stored under any of its names; poolers may be missing, as they are rarely used."""
    prefix = model.base_model_prefix + "."
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for same in names.values():
        if all(_shape_of(name, shapes, prefix) is None for name in same) and ".pooler." not in f".{same[0]}":
            raise _missing(same[0])


def _require_equal(name: str, stored: tuple[int, ...], parameter: Tensor, declared_by: str) -> None:
    if stored != tuple(parameter.shape):
        raise BadCheckpoint(
            f"{name} has shape {stored} in the weights and {tuple(parameter.shape)} by {declared_by}: "
            "the files of this folder do not belong together; restore the whole folder."
        )


def _missing(name: str) -> BadCheckpoint:
    return BadCheckpoint(f"{name} is missing from the weights; restore the whole folder.")


def _shape_of(name: str, shapes: Shapes, prefix: str) -> tuple[int, ...] | None:
    # A bare encoder has names without the prefix, a model with a head has it; each loads into the other.
    return shapes.get(name) or shapes.get(name.removeprefix(prefix)) or shapes.get(prefix + name)
