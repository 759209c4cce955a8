"""The table of model families by `model_type`. The rows are in `rows_*.py`."""

from __future__ import annotations

import sys
from typing import Any

from transformers import PreTrainedConfig

from kprune.config import QUANT_METHOD
from kprune.errors import UnsupportedModel
from kprune.models.family import Family
from kprune.models.row_format import from_json, to_json
from kprune.models.rows_decoders import EUROBERT, GEMMA2, GPT2, GPT_NEOX, LLAMA, OPT, PHI3, STARCODER2
from kprune.models.rows_encoders import (
    BERT,
    BERT_LIKE,
    DEBERTA,
    DEBERTA_V2,
    DISTILBERT,
    ESM,
    MEGATRON_BERT,
    MODERNBERT,
    MPNET,
    NOMIC_BERT,
    ROBERTA,
    T5,
    UMT5,
)
from kprune.models.rows_vision_and_speech import CLIP_TEXT, CLIP_VISION, DINOV2, VIT, WAV2VEC2, WHISPER

FAMILIES: dict[str, Family] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "electra": BERT_LIKE,
    "ernie": BERT_LIKE,
    "layoutlm": BERT_LIKE,
    "data2vec-text": ROBERTA,
    "esm": ESM,
    "megatron-bert": MEGATRON_BERT,
    "mpnet": MPNET,
    "deberta": DEBERTA,
    "deberta-v2": DEBERTA_V2,
    "distilbert": DISTILBERT,
    "modernbert": MODERNBERT,
    "nomic_bert": NOMIC_BERT,
    "gte": NOMIC_BERT,
    "eurobert": EUROBERT,
    "t5": T5,
    "mt5": T5,
    "umt5": UMT5,
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "smollm3": LLAMA,
    "gemma": LLAMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA2,
    "phi3": PHI3,
    "starcoder2": STARCODER2,
    "gpt2": GPT2,
    "gpt_neox": GPT_NEOX,
    "opt": OPT,
    "vit": VIT,
    "deit": VIT,
    "dinov2": DINOV2,
    "clip_vision_model": CLIP_VISION,
    "clip_text_model": CLIP_TEXT,
    "siglip_vision_model": CLIP_VISION,
    "whisper": WHISPER,
    "wav2vec2": WAV2VEC2,
    "hubert": WAV2VEC2,
}

_WITHOUT_ANSWERS = ("classification", "token classification", "masked language model", "embedding")
_TEXT = ("classification", "question answering", "token classification", "masked language model", "embedding")
_LANGUAGE = ("causal language model", "classification", "embedding")
_ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert", "ernie", "electra", "distilbert", "data2vec-text")
TESTED_KINDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*_ENCODERS, "megatron-bert", "mpnet", "modernbert", "deberta", "deberta-v2"), _TEXT),
    **dict.fromkeys(("layoutlm", "esm", "nomic_bert", "gte", "eurobert"), _WITHOUT_ANSWERS),
    **dict.fromkeys(("mistral", "qwen2", "qwen3", "smollm3", "gemma", "gemma2", "phi3", "starcoder2"), _LANGUAGE),
    **dict.fromkeys(("gpt2", "gpt_neox", "opt"), _LANGUAGE),
    "llama": (*_LANGUAGE, "question answering", "token classification"),
    "gemma3_text": ("causal language model", "embedding"),
    "t5": ("embedding", "token classification"),
    **dict.fromkeys(("mt5", "umt5", "clip_vision_model", "clip_text_model"), ("embedding",)),
    "siglip_vision_model": ("embedding",),
    **dict.fromkeys(("vit", "deit", "dinov2"), ("image classification", "embedding")),
    "whisper": ("encoder states", "sound classification"),
    **dict.fromkeys(("wav2vec2", "hubert"), ("speech recognition", "sound classification", "embedding")),
}
"""Output kinds on which the tests run every law of a family; a test compares."""

REGISTERED: dict[str, Family] = {}
"""Rows that were proposed for other model types and passed the laws, in this process; `kprune.check` adds them."""

REMEDIES = {"is_decoder": "load it with"}
"""What to do about a config attribute that a row does not support, where training does not depend on it."""

_TOWERS = "it has two encoders, which are pruned one by one; load {0}VisionModel or {0}TextModel from it, and save that"
REFUSED = {
    "albert": "one layer's weights serve all its layers, and kprune prunes each layer on its own; use a BERT model",
    "olmo2": "its query and key norms span all heads, so that no head can be removed exactly; use another decoder",
    "clip": _TOWERS.format("CLIP"),
    "siglip": "it has two encoders; load SiglipVisionModel from it, and save that",
    "siglip_text_model": "its embedding is read at a padding token, and kprune reads no padding; use a CLIP text model",
}
"""Why a family cannot be pruned, and what to use instead."""


def family_of(config: PreTrainedConfig) -> Family:
    """The row of a model's config: the one in its pruning record, or by `model_type` and the attributes it requires."""
    model_type = config.model_type
    if model_type in REFUSED:
        article = "an" if model_type[0] in "aeiou" else "a"
        raise UnsupportedModel(f"cannot prune {article} {model_type!r} model: {REFUSED[model_type]}.")
    row = find_row(config)
    if row is None:
        raise UnsupportedModel(
            f"cannot prune a {model_type!r} model; supported: {', '.join(sorted(FAMILIES))}. "
            "`kprune check` and kprune.check propose a row for other models; see docs/new-family.md."
        )
    while True:
        unmet = {name: value for name, value in row.requires.items() if getattr(config, name, value) != value}
        if not unmet:
            return row
        if row.otherwise is None:
            name, value = next(iter(unmet.items()))
            raise UnsupportedModel(
                f"cannot prune this {model_type!r} model: config.{name} is {getattr(config, name)!r}; "
                f"{REMEDIES.get(name, 'use a model that was trained with')} {name}={value!r}."
            )
        row = row.otherwise


def find_row(config: PreTrainedConfig) -> Family | None:
    """The row of a config's pruning record, of the table or of a proposal in this process; None if there is none."""
    return recorded_row(config) or FAMILIES.get(config.model_type) or REGISTERED.get(config.model_type)


def has_row(config: PreTrainedConfig) -> bool:
    """Whether the table or a pruning record has a row for the model; a row that another model got is not enough."""
    return config.model_type in FAMILIES or recorded_row(config) is not None


def recorded_row(config: PreTrainedConfig) -> Family | None:
    """The row that a pruned folder of a model type without a row has in its record."""
    record = getattr(config, "quantization_config", None)
    if record is not None and not isinstance(record, dict):
        record = getattr(record, "record", None)
    if not isinstance(record, dict) or record.get("quant_method") != QUANT_METHOD or "family" not in record:
        return None
    return from_json(record["family"])


def row_to_store(config: PreTrainedConfig) -> dict[str, Any] | None:
    """The row that a pruned model's record needs, because the table has none; None: the table has it."""
    is_listed = config.model_type in FAMILIES and recorded_row(config) is None
    return None if is_listed else to_json(family_of(config))


def max_positions(config: PreTrainedConfig) -> int:
    """The largest number of tokens that a model has positions for; an exported graph need not have a row."""
    if find_row(config) is None:
        return int(getattr(config, "max_position_embeddings", sys.maxsize))
    family = family_of(config)
    if family.positions is None:
        return sys.maxsize
    positions = int(getattr(config, family.positions))
    if family.positions_follow_padding:
        positions -= config.pad_token_id + 1
    return positions
