"""A tiny real model of every family, built from its config, with inputs for it.

`NAMES` are model types; a name with a slash is a variant, such as `gpt_neox/serial`. The weights are random and large
enough that every part of a model has an effect on its outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tiny
import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

SIZES = tiny.SIZES
SPECIAL_TOKENS = tiny.SPECIAL_TOKENS
DECODER = {**SIZES, **SPECIAL_TOKENS, "num_key_value_heads": 2}
HEAD_DIM = {**DECODER, "head_dim": 8}
LOCAL = {**HEAD_DIM, "query_pre_attn_scalar": 8, "sliding_window": 8}
IMAGES = {**SIZES, "image_size": 16, "patch_size": 4, "num_channels": 3}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 3}
GATED_T5 = {**T5, "feed_forward_proj": "gated-gelu"}
POSITIONS = {**SIZES, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
WHISPER = {
    "d_model": 32,
    "encoder_layers": 3,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 16,
    "num_mel_bins": 8,
    "max_source_positions": 12,
    "decoder_start_token_id": 2,
}
WAVEFORMS = {
    **SIZES,
    "conv_dim": (16, 16),
    "conv_stride": (4, 4),
    "conv_kernel": (8, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
CLASSIFIER = "AutoModelForSequenceClassification"
CAUSAL, MASKED, CTC = "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForCTC"
ENCODER, TEXT_ENCODER = "AutoModel", "AutoModelForTextEncoding"
IMAGE_CLASSIFIER = "AutoModelForImageClassification"


@dataclass(frozen=True)
class Animal:
    """The class of one tiny model, and its config."""

    loader: str
    sizes: dict[str, Any]


ZOO = {
    "bert": Animal(CLASSIFIER, SIZES),
    "roberta": Animal(CLASSIFIER, SIZES),
    "xlm-roberta": Animal(MASKED, SIZES),
    "camembert": Animal(ENCODER, SIZES),
    "electra": Animal(CLASSIFIER, {**SIZES, "embedding_size": 16}),
    "ernie": Animal(MASKED, SIZES),
    "layoutlm": Animal(CLASSIFIER, SIZES),
    "data2vec-text": Animal(MASKED, SIZES),
    "esm": Animal(CLASSIFIER, tiny.SEAM_CONFIGS["esm"]),
    "megatron-bert": Animal(CLASSIFIER, SIZES),
    "mpnet": Animal(ENCODER, SIZES),
    "deberta": Animal(CLASSIFIER, POSITIONS),
    "deberta-v2": Animal(
        CLASSIFIER, {**POSITIONS, "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
    ),
    "deberta-v2/own position projections": Animal(MASKED, {**POSITIONS, "position_buckets": 8}),
    "distilbert": Animal(CLASSIFIER, tiny.CONFIGS["distilbert"]),
    "modernbert": Animal(CLASSIFIER, tiny.SEAM_CONFIGS["modernbert"]),
    "nomic_bert": Animal(ENCODER, SIZES),
    "gte": Animal(CLASSIFIER, SIZES),
    "eurobert": Animal(MASKED, DECODER),
    "t5": Animal(TEXT_ENCODER, {**T5, "feed_forward_proj": "relu"}),
    "mt5": Animal(TEXT_ENCODER, GATED_T5),
    "umt5": Animal(TEXT_ENCODER, GATED_T5),
    "llama": Animal(CAUSAL, DECODER),
    "mistral": Animal(CAUSAL, {**DECODER, "sliding_window": 8}),
    "qwen2": Animal(CAUSAL, DECODER),
    "qwen3": Animal(CAUSAL, HEAD_DIM),
    "smollm3": Animal(CAUSAL, DECODER),
    "gemma": Animal(CAUSAL, HEAD_DIM),
    "gemma2": Animal(CAUSAL, LOCAL),
    "gemma3_text": Animal(CAUSAL, LOCAL),
    "phi3": Animal(CAUSAL, DECODER),
    "starcoder2": Animal(CAUSAL, DECODER),
    "gpt2": Animal(CAUSAL, {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 66, "n_inner": 48}),
    "gpt_neox": Animal(CAUSAL, SIZES),
    "gpt_neox/serial": Animal(CAUSAL, {**SIZES, "use_parallel_residual": False}),
    "opt": Animal(CAUSAL, tiny.SEAM_CONFIGS["opt"]),
    "vit": Animal(IMAGE_CLASSIFIER, IMAGES),
    "deit": Animal("DeiTForImageClassification", IMAGES),
    "dinov2": Animal(IMAGE_CLASSIFIER, {**IMAGES, "mlp_ratio": 2, "layerscale_value": 0.3}),
    "clip_vision_model": Animal("CLIPVisionModelWithProjection", {**IMAGES, "projection_dim": 16}),
    "clip_text_model": Animal("CLIPTextModelWithProjection", {**SIZES, "projection_dim": 16, "eos_token_id": 2}),
    "siglip_vision_model": Animal("SiglipVisionModel", IMAGES),
    "siglip_text_model": Animal("SiglipTextModel", SIZES),
    "whisper": Animal("WhisperForConditionalGeneration", WHISPER),
    "whisper/classifier": Animal("AutoModelForAudioClassification", WHISPER),
    "wav2vec2": Animal(CTC, WAVEFORMS),
    "wav2vec2/pre-norm": Animal(CTC, {**WAVEFORMS, "do_stable_layer_norm": True, "feat_extract_norm": "layer"}),
    "hubert": Animal(CTC, WAVEFORMS),
}
NAMES = list(ZOO)


def build(name: str, animal: Animal | None = None, **changes: Any) -> PreTrainedModel:
    """The model with this name, or of another config, with the same weights every time."""
    animal = animal or ZOO[name]
    common = {"vocab_size": 99, "max_position_embeddings": 66, "initializer_range": 0.25, "pad_token_id": 1}
    torch.manual_seed(0)
    config = AutoConfig.for_model(name.split("/")[0], **{**common, **animal.sizes, **changes})
    loader = getattr(transformers, animal.loader)
    model = loader.from_config(config) if hasattr(loader, "from_config") else loader(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.25)
            else:  # biases start at zero and scales at one
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def batches(model: PreTrainedModel) -> list[dict[str, Tensor]]:
    """Inputs for a model: texts of two lengths, images, spectrograms, or waveforms of two lengths."""
    inputs = model.main_input_name
    generator = torch.Generator().manual_seed(1)
    if inputs == "input_ids":
        ids = torch.randint(5, 99, (6, 20), generator=generator)
        mask = torch.ones_like(ids)
        ids[2, 13:], mask[2, 13:] = 1, 0
        batch = {"input_ids": ids, "attention_mask": mask}
        if model.config.model_type == "layoutlm":
            batch["bbox"] = torch.randint(0, 50, (6, 20, 4), generator=generator).sort(-1).values
        return [batch]
    if inputs == "pixel_values":
        return [{inputs: torch.randn(6, 3, 16, 16, generator=generator)}]
    if inputs == "input_features":
        return [{inputs: torch.randn(6, 8, 24, generator=generator)}]
    return [{inputs: torch.randn(count, length, generator=generator)} for count, length in ((4, 400), (2, 500))]
