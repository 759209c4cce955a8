"""Tiny real models, built from configs: fast, offline, with all parts of a full-size model."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from kprune.models.batches import Sample, examples_of, regroup

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 48}
CONFIGS = {
    "bert": SIZES,
    "roberta": SIZES,
    "xlm-roberta": SIZES,
    "camembert": SIZES,
    "electra": {**SIZES, "embedding_size": 16},
    "distilbert": {"dim": 32, "n_heads": 4, "n_layers": 3, "hidden_dim": 48},
}
CORE_FAMILIES = list(CONFIGS)
"""Post-norm families with the first-token saving, tested with every output kind."""

ALIAS_CONFIGS = {"ernie": SIZES, "data2vec-text": SIZES}
"""Families with the row of another family."""

SPECIAL_TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 2)
SEAM_CONFIGS = {
    # A window of 8 tokens, 4 to each side: most texts are longer. Layer 0 is global, layers 1 and 2 are local.
    "modernbert": {**SIZES, **SPECIAL_TOKENS, "local_attention": 8, "global_attn_every_n_layers": 3},
    "esm": {**SIZES, "position_embedding_type": "absolute", "token_dropout": True, "mask_token_id": 4},
    "megatron-bert": SIZES,
    # One table of position biases, a column per head, serves all layers.
    "mpnet": SIZES,
    # Two query heads share a key/value head.
    "llama": {**SIZES, **SPECIAL_TOKENS, "num_key_value_heads": 2},
    "opt": {**SIZES, **SPECIAL_TOKENS, "ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.25},
}
SEAM_FAMILIES = list(SEAM_CONFIGS)
"""Families with other layers: pre-norm, fused or gated projections, grouped queries, flattened tokens."""
SEAM_KINDS = ["classification", "embedding"]
ALL_FAMILIES = [*CORE_FAMILIES, *ALIAS_CONFIGS, *SEAM_FAMILIES]
FAMILY_NAMES = [family for family in ALL_FAMILIES if family not in ("llama", "opt")]
"""The announced families."""
POST_NORM = [*CORE_FAMILIES, *ALIAS_CONFIGS, "mpnet"]

HEADS = {
    "classification": (AutoModelForSequenceClassification, {"num_labels": 3}),
    "multi-label classification": (
        AutoModelForSequenceClassification,
        {"num_labels": 4, "problem_type": "multi_label_classification"},
    ),
    "regression": (AutoModelForSequenceClassification, {"num_labels": 1}),
    "question answering": (AutoModelForQuestionAnswering, {}),
    "token classification": (AutoModelForTokenClassification, {"num_labels": 5}),
    "masked language model": (AutoModelForMaskedLM, {}),
    "embedding": (AutoModel, {}),
}
KIND_NAMES = list(HEADS)

KINDS_OF = {
    **dict.fromkeys(CORE_FAMILIES, KIND_NAMES),
    **{family: ["masked language model"] for family in ALIAS_CONFIGS},
    **dict.fromkeys(SEAM_FAMILIES, SEAM_KINDS),
    "modernbert": KIND_NAMES,
    "mpnet": ["classification", "question answering", "masked language model", "embedding"],
    "esm": ["classification", "token classification", "masked language model", "embedding"],
}
ALL_CASES = [(family, kind) for family, kinds in KINDS_OF.items() for kind in kinds]
"""Every family with every output kind that its tests cover."""


def tiny_config(family: str, **changes: object):
    # With the default of 0.02 every layer of a model this narrow would be nearly the identity.
    common = {"vocab_size": 99, "max_position_embeddings": 66, "initializer_range": 0.25, "pad_token_id": 1}
    return AutoConfig.for_model(family, **{**common, **(CONFIGS | ALIAS_CONFIGS | SEAM_CONFIGS)[family], **changes})


def tiny_model(family: str = "bert", kind: str = "classification", seed: int = 0, **changes: object) -> PreTrainedModel:
    loader, extra = HEADS[kind]
    torch.manual_seed(seed)
    model = loader.from_config(tiny_config(family, **{**extra, **changes}))
    with torch.no_grad():  # biases start at zero, and would have no effect
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
    return model.eval()


def texts(examples: int = 64, seed: int = 0, shortest: int = 4, longest: int = 24) -> list[Tensor]:
    """Random token numbers, in inputs of mixed length."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (examples,), generator=generator).tolist()
    return [torch.randint(5, 99, (length,), generator=generator) for length in lengths]


def batched(inputs: list[Tensor], size: int = 8, *, left: bool = False, extra: int = 0) -> list[dict[str, Tensor]]:
    """Padded batches, like a tokenizer's output; `extra` is padding beyond the longest."""
    batches = []
    for start in range(0, len(inputs), size):
        group = inputs[start : start + size]
        width = max(map(len, group)) + extra
        ids = torch.ones(len(group), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, tokens in enumerate(group):
            where = slice(width - len(tokens), width) if left else slice(0, len(tokens))
            ids[row, where] = tokens
            mask[row, where] = 1
        batches.append({"input_ids": ids, "attention_mask": mask})
    return batches


def sample_of(inputs: list[Tensor], tokens: int = 120) -> Sample:
    return regroup(examples_of(batched(inputs)), tokens=tokens, pad_id=1, device=torch.device("cpu"))


def same_outputs(a: PreTrainedModel, b: PreTrainedModel, batch: dict[str, Tensor]) -> bool:
    """Whether the outputs of two models are equal bit for bit; a decoder's cache is not compared."""
    with torch.no_grad():
        ours, theirs = ([v for v in m(**batch).to_tuple() if isinstance(v, Tensor)] for m in (a, b))
    return len(ours) > 0 and all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


QUICK: dict[str, dict[str, object]] = {
    "textpruner": {"iterations": 2},
    "dynabert-w": {"epochs": 0.1},
    "dynabert-d": {"epochs": 0.1},
    "ebert": {"epochs": 0.1},
}
"""Settings with which methods of many steps take little time."""
