"""Tiny real models, built from configs: quick, offline, and all that a full-size one has."""

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

from kprune.sample import Sample, examples_of, regroup

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 48}
CONFIGS = {
    "bert": SIZES,
    "roberta": SIZES,
    "xlm-roberta": SIZES,
    "camembert": SIZES,
    "electra": {**SIZES, "embedding_size": 16},
    "distilbert": {"dim": 32, "n_heads": 4, "n_layers": 3, "hidden_dim": 48},
}
FAMILY_NAMES = list(CONFIGS)

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


def tiny_config(family: str, **changes: object):
    # Weights of trained size: the default of 0.02 makes every layer of a model this narrow nearly the identity.
    common = {"vocab_size": 99, "max_position_embeddings": 66, "initializer_range": 0.25, "pad_token_id": 1}
    return AutoConfig.for_model(family, **{**common, **CONFIGS[family], **changes})


def tiny_model(family: str = "bert", kind: str = "classification", seed: int = 0, **changes: object) -> PreTrainedModel:
    loader, extra = HEADS[kind]
    torch.manual_seed(seed)
    model = loader.from_config(tiny_config(family, **{**extra, **changes}))
    with torch.no_grad():  # biases start at zero; let them matter
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
    return model.eval()


def texts(examples: int = 64, seed: int = 0, shortest: int = 4, longest: int = 24) -> list[Tensor]:
    """Token numbers of made-up inputs of mixed length."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (examples,), generator=generator).tolist()
    return [torch.randint(5, 99, (length,), generator=generator) for length in lengths]


def batched(inputs: list[Tensor], size: int = 8, *, left: bool = False, extra: int = 0) -> list[dict[str, Tensor]]:
    """Padded batches, as a tokenizer gives them; `extra` padding beyond the longest."""
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
    """Whether two models give the very same bits."""
    with torch.no_grad():
        return all(torch.equal(x, y) for x, y in zip(a(**batch).to_tuple(), b(**batch).to_tuple(), strict=True))
