"""The transformers plug-in that makes plain `from_pretrained` read a pruned checkpoint.

transformers hands a model's skeleton, on the meta device, to the plug-in that `config.json` names under
`quantization_config.quant_method`, before it loads the weights. Ours gives each sublayer its size. Afterwards nothing
is left of it but the record in the config: to `.half()`, `.to()`, the Trainer and `save_pretrained` the model is dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel
from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    register_quantization_config,
    register_quantizer,
)
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from kprune.errors import BadCheckpoint
from kprune.families import family_of
from kprune.record import METHOD, apply


class PruningConfig(QuantizationConfigMixin):
    """The record, in the form in which transformers passes it to the plug-in."""

    def __init__(self, **record: Any) -> None:
        self.quant_method = METHOD  # type: ignore[assignment]  # an enum of the built-in ones
        self.record = record

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        config = cls(**config_dict)
        return (config, kwargs) if return_unused_kwargs else config

    def to_dict(self) -> dict[str, Any]:
        return self.record


class PruningLoader(HfQuantizer):
    """Shrinks the skeleton before the weights come, and takes its leave after."""

    quantization_config: PruningConfig

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: Sequence[str] | None = None, **kwargs: Any
    ) -> None:
        apply(self.quantization_config.record, model)
        if checkpoint_files:
            compare_with_files(model, checkpoint_files)

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> PreTrainedModel:
        self.remove_quantization_config(model)  # type: ignore[no-untyped-call]
        for module in model.modules():
            if isinstance(module, PreTrainedModel):
                module.config._is_quantized = False
        model.config.quantization_config = self.quantization_config.record
        return model

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True


def compare_with_files(model: PreTrainedModel, files: Sequence[str]) -> None:
    """Refuse weights that are not those of the model's layers, naming the first that disagrees."""
    shapes = shapes_in(files)
    prefix = model.base_model_prefix + "."
    layers = family_of(model.config).layers + "."
    own = {name.removeprefix(prefix) for name, _ in model.named_parameters()}
    for name in shapes:
        if name.removeprefix(prefix).startswith(layers) and name.removeprefix(prefix) not in own:
            raise BadCheckpoint(
                f"the weights hold {name}, which the pruning record leaves no room for: "
                "the files of this folder do not belong together; restore the whole folder."
            )
    for name, _ in model.named_parameters():
        if name.removeprefix(prefix).startswith(layers) and _shape_of(name, shapes, prefix) is None:
            raise BadCheckpoint(f"{name} is missing from the weights; restore the whole folder.")
    compare_shapes(model, shapes, "the pruning record")


def compare_shapes(model: PreTrainedModel, shapes: dict[str, tuple[int, ...]], by: str) -> None:
    """Refuse weights of other shapes than a model's, naming the first; `by` says what tells of the model's."""
    for name, parameter in model.named_parameters():
        found = _shape_of(name, shapes, model.base_model_prefix + ".")
        if found is not None and found != tuple(parameter.shape):
            raise BadCheckpoint(
                f"{name} has shape {found} in the weights and {tuple(parameter.shape)} by {by}: "
                "the files of this folder do not belong together; restore the whole folder."
            )


def _shape_of(name: str, shapes: dict[str, tuple[int, ...]], prefix: str) -> tuple[int, ...] | None:
    # A bare encoder's checkpoint has no prefix, one with a head has; each may be loaded into the other.
    return shapes.get(name) or shapes.get(name.removeprefix(prefix)) or shapes.get(prefix + name)


def shapes_in(files: Sequence[str | Path]) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors in safetensors files, by their headers."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        if not str(file).endswith(".safetensors"):
            raise BadCheckpoint(f"{file} is not a safetensors file, and kprune reads no other; save the model again.")
        try:
            with safe_open(file, framework="pt") as weights:
                shapes |= {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise BadCheckpoint(f"{file} cannot be read ({error}); copy or save the folder again.") from error
    return shapes


if METHOD not in AUTO_QUANTIZATION_CONFIG_MAPPING:  # a reload of this module must not register twice
    register_quantization_config(METHOD)(PruningConfig)
    register_quantizer(METHOD)(PruningLoader)
