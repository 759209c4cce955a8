"""Checks of a model folder's tokenizer: transformers invents one of a few tokens where the files are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from kprune.checkpoints.files import TOKENIZER_FILES
from kprune.data.calibration import require_tokenizer_type
from kprune.errors import BadCheckpoint

SMALLEST_SHARE = 0.5
"""A tokenizer with fewer tokens than this share of the vocabulary is another model's; padded vocabularies have more."""


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def require_tokenizer(folder: Path) -> None:
    """Raise if a folder has no file with a vocabulary."""
    if not has_tokenizer(folder):
        raise BadCheckpoint(
            f"{folder} has no tokenizer, so the model cannot read text; add its files, such as tokenizer.json "
            "(in Python: tokenizer.save_pretrained)."
        )


def require_fit(tokenizer: Any, config: PreTrainedConfig, name: str) -> None:
    """Raise if a tokenizer does not fit the model's vocabulary; `name` says where it is from."""
    require_tokenizer_type(tokenizer)
    size = getattr(config, "vocab_size", None)
    if not isinstance(size, int):
        return
    vocabulary = tokenizer.get_vocab()
    largest = max(vocabulary.values(), default=-1)
    if largest >= size:
        raise BadCheckpoint(
            f"the tokenizer of {name} has a token number {largest}, and the model {size} embeddings; use the tokenizer "
            "that the model was trained with, or call model.resize_token_embeddings and train."
        )
    if len(vocabulary) < SMALLEST_SHARE * size:
        raise BadCheckpoint(
            f"the tokenizer of {name} has {len(vocabulary)} tokens, and the model a vocabulary of {size}; "
            "use the tokenizer that the model was trained with."
        )
