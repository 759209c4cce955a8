"""The transformers plug-in that lets plain `from_pretrained` read a pruned checkpoint.

transformers builds the model on the meta device and passes it to the quantizer that `config.json` names under
`quantization_config.quant_method`, before it loads weights. kprune's quantizer resizes each sublayer. After loading,
only the record in the config remains: `.half()`, `.to()`, the Trainer and `save_pretrained` treat the model as dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel
from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    register_quantization_config,
    register_quantizer,
)
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from kprune.config import QUANT_METHOD


class KpruneQuantizationConfig(QuantizationConfigMixin):
    """The pruning record, in the form that transformers passes to a quantizer."""

    def __init__(self, **record: Any) -> None:
        self.quant_method = QUANT_METHOD  # type: ignore[assignment]  # transformers' enum has its built-in methods only
        self.record = record

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        config = cls(**config_dict)
        return (config, kwargs) if return_unused_kwargs else config

    def to_dict(self) -> dict[str, Any]:
        return self.record


class KpruneQuantizer(HfQuantizer):
    """Resizes the meta model before weights load; then marks it unquantized."""

    quantization_config: KpruneQuantizationConfig

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: Sequence[str] | None = None, **kwargs: Any
    ) -> None:
        # Not above: this module is imported while any of kprune's modules imports transformers.
        from kprune.checkpoints.validation import require_same_layers, tensor_shapes
        from kprune.models.pruned_shape import apply

        apply(self.quantization_config.record, model)
        if checkpoint_files:
            require_same_layers(model, tensor_shapes(checkpoint_files), "the pruning record")

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


if QUANT_METHOD not in AUTO_QUANTIZATION_CONFIG_MAPPING:  # transformers refuses a second registration on reload
    register_quantization_config(QUANT_METHOD)(KpruneQuantizationConfig)
    register_quantizer(QUANT_METHOD)(KpruneQuantizer)
