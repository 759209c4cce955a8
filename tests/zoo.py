"""Tiny real models of every family and output kind, built from configs, with inputs that each of them reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from tiny import HEADS, SEAM_CONFIGS, SIZES, SPECIAL_TOKENS
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from kprune.models.batches import Sample, examples_of, regroup
from kprune.models.families import family_of
from kprune.models.passes import stream_length

DECODER = {**SIZES, **SPECIAL_TOKENS, "num_key_value_heads": 2}
GEMMA = {**DECODER, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 3}
IMAGE = {**SIZES, "image_size": 16, "patch_size": 4, "num_channels": 3, "projection_dim": 16}
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
SOUND = {
    **SIZES,
    "conv_dim": (16, 16),
    "conv_stride": (4, 4),
    "conv_kernel": (8, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
RELATIVE = {**SIZES, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}

TEXT_KINDS = ("classification", "question answering", "token classification", "masked language model", "embedding")
LANGUAGE_KINDS = ("causal language model", "classification", "embedding")
OTHER_HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "causal language model": ("AutoModelForCausalLM", {}),
    "image classification": ("AutoModelForImageClassification", {"num_labels": 3}),
    "sound classification": ("AutoModelForAudioClassification", {"num_labels": 3}),
    "speech recognition": ("AutoModelForCTC", {}),
}
"""Classes that load models of kinds beyond those of `tiny.HEADS`."""


@dataclass(frozen=True)
class Entry:
    """A family's tiny config, and the output kinds that it is tested with; a kind may name its class."""

    config: dict[str, Any]
    kinds: tuple[str, ...]
    classes: dict[str, str] = field(default_factory=dict)


ZOO: dict[str, Entry] = {
    **{name: Entry(SIZES, TEXT_KINDS) for name in ("bert", "roberta", "xlm-roberta", "camembert", "ernie")},
    "electra": Entry({**SIZES, "embedding_size": 16}, TEXT_KINDS),
    "distilbert": Entry({"dim": 32, "n_heads": 4, "n_layers": 3, "hidden_dim": 48}, TEXT_KINDS),
    "data2vec-text": Entry(SIZES, TEXT_KINDS),
    "layoutlm": Entry(SIZES, ("classification", "token classification", "masked language model", "embedding")),
    "esm": Entry(SEAM_CONFIGS["esm"], ("classification", "token classification", "masked language model", "embedding")),
    "megatron-bert": Entry(SIZES, TEXT_KINDS),
    "mpnet": Entry(SIZES, TEXT_KINDS),
    "modernbert": Entry(SEAM_CONFIGS["modernbert"], TEXT_KINDS),
    "deberta": Entry(RELATIVE, TEXT_KINDS),
    "deberta/absolute": Entry(SIZES, ("classification",)),
    "deberta-v2": Entry(
        {**RELATIVE, "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"}, TEXT_KINDS
    ),
    "deberta-v2/own position projections": Entry({**RELATIVE, "position_buckets": 8}, ("classification",)),
    "nomic_bert": Entry(SIZES, ("classification", "token classification", "masked language model", "embedding")),
    "gte": Entry(SIZES, ("classification", "token classification", "masked language model", "embedding")),
    "eurobert": Entry(DECODER, ("classification", "token classification", "masked language model", "embedding")),
    "t5": Entry(
        {**T5, "feed_forward_proj": "relu"}, ("embedding", "token classification"), {"embedding": "T5EncoderModel"}
    ),
    "mt5": Entry({**T5, "feed_forward_proj": "gated-gelu"}, ("embedding",), {"embedding": "MT5EncoderModel"}),
    "umt5": Entry({**T5, "feed_forward_proj": "gated-gelu"}, ("embedding",), {"embedding": "UMT5EncoderModel"}),
    "umt5/plain": Entry({**T5, "feed_forward_proj": "relu"}, ("embedding",), {"embedding": "UMT5EncoderModel"}),
    "llama": Entry(DECODER, (*LANGUAGE_KINDS, "question answering", "token classification")),
    "mistral": Entry({**DECODER, "sliding_window": 8}, LANGUAGE_KINDS),
    "qwen2": Entry(DECODER, LANGUAGE_KINDS),
    "qwen3": Entry({**DECODER, "head_dim": 8}, LANGUAGE_KINDS),
    "smollm3": Entry(DECODER, LANGUAGE_KINDS),
    "gemma": Entry({**DECODER, "head_dim": 8}, LANGUAGE_KINDS),
    "gemma2": Entry(GEMMA, LANGUAGE_KINDS),
    "gemma3_text": Entry(GEMMA, ("causal language model", "embedding")),
    "phi3": Entry(DECODER, LANGUAGE_KINDS),
    "starcoder2": Entry(DECODER, LANGUAGE_KINDS),
    "gpt2": Entry({"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 66, "n_inner": 48}, LANGUAGE_KINDS),
    "gpt_neox": Entry(SIZES, LANGUAGE_KINDS),
    "gpt_neox/serial": Entry({**SIZES, "use_parallel_residual": False}, ("causal language model",)),
    "opt": Entry(SEAM_CONFIGS["opt"], LANGUAGE_KINDS),
    "vit": Entry(IMAGE, ("image classification", "embedding")),
    "deit": Entry(IMAGE, ("image classification", "embedding"), {"image classification": "DeiTForImageClassification"}),
    "dinov2": Entry(
        {name: value for name, value in IMAGE.items() if name != "intermediate_size"}
        | {"mlp_ratio": 2, "layerscale_value": 0.3},
        ("image classification", "embedding"),
    ),
    "clip_vision_model": Entry(IMAGE, ("embedding",), {"embedding": "CLIPVisionModelWithProjection"}),
    "clip_text_model": Entry(
        {**SIZES, "projection_dim": 16, "eos_token_id": 2}, ("embedding",), {"embedding": "CLIPTextModelWithProjection"}
    ),
    "siglip_vision_model": Entry(IMAGE, ("embedding",)),
    "whisper": Entry(
        WHISPER, ("encoder states", "sound classification"), {"encoder states": "WhisperForConditionalGeneration"}
    ),
    "wav2vec2": Entry(SOUND, ("speech recognition", "sound classification", "embedding")),
    "wav2vec2/pre-norm": Entry(
        {**SOUND, "do_stable_layer_norm": True, "feat_extract_norm": "layer"}, ("speech recognition",)
    ),
    "hubert": Entry(SOUND, ("speech recognition", "sound classification", "embedding")),
}
CASES = [(name, kind) for name, entry in ZOO.items() for kind in entry.kinds]
"""Every family with every output kind."""
ONE_EACH = [(name, entry.kinds[0]) for name, entry in ZOO.items()]
"""Every family with one output kind."""
DECODERS = [name for name, entry in ZOO.items() if "causal language model" in entry.kinds]
SAME_CODE = {"camembert", "xlm-roberta", "ernie", "data2vec-text", "deit", "mt5", "mistral"}
"""Families with the layers of another one: what every family must pass, they pass in slow tests."""


def marked(cases: Iterable[Any]) -> list[Any]:
    """Cases of a test, a family each or a tuple that begins with one; those of `SAME_CODE` are slow."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*value, marks=[pytest.mark.slow] * (value[0] in SAME_CODE)) for value in values]


def build(name: str, kind: str | None = None, **changes: Any) -> PreTrainedModel:
    """A model with random weights, large enough that every unit matters, and biases that are not zero."""
    entry = ZOO[name]
    kind = kind or entry.kinds[0]
    head = OTHER_HEADS.get(kind) or HEADS.get(kind, (None, {}))
    common: dict[str, Any] = {"vocab_size": 99, "max_position_embeddings": 66, "pad_token_id": 1, **head[1]}
    if "image_size" in entry.config:  # real configs of images have none of these
        common = head[1]
    config = AutoConfig.for_model(name.partition("/")[0], **{**common, **entry.config, **changes})
    torch.manual_seed(0)
    if kind in entry.classes:
        model = getattr(transformers, entry.classes[kind])(config)
    else:
        loader = getattr(transformers, head[0]) if isinstance(head[0], str) else head[0]
        model = loader.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.25)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def batches(model: PreTrainedModel, count: int = 1, examples: int = 6) -> list[dict[str, Tensor]]:
    """Random inputs, as a tokenizer or a processor gives them; texts have padding, sounds two lengths."""
    generator = torch.Generator().manual_seed(1)
    name = family_of(model.config).inputs
    found = []
    for number in range(count):
        if name == "pixel_values":
            found.append({name: torch.randn(examples, 3, 16, 16, generator=generator)})
        elif name == "input_features":
            found.append({name: torch.randn(examples, 8, 24, generator=generator)})
        elif name == "input_values":
            found.append({name: torch.randn(examples, 400 + 100 * (number % 2), generator=generator)})
        else:
            found.append(_texts(model, examples, generator))
    return found


def _texts(model: PreTrainedModel, examples: int, generator: torch.Generator) -> dict[str, Tensor]:
    ids = torch.randint(5, 99, (examples, 20), generator=generator)
    mask = torch.ones_like(ids)
    ids[2, 13:], mask[2, 13:] = 1, 0
    batch = {"input_ids": ids, "attention_mask": mask}
    if model.config.model_type == "layoutlm":
        batch["bbox"] = torch.randint(0, 50, (*ids.shape, 4), generator=generator).sort(-1).values
    return batch


def sample(model: PreTrainedModel, count: int = 1) -> Sample:
    """The batches, regrouped as for pruning."""
    examples = examples_of(batches(model, count), partial(stream_length, model))
    return regroup(examples, tokens=1000, pad_id=1, device=torch.device("cpu"))
