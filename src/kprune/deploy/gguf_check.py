"""Compare a GGUF file with torch, in llama.cpp's Python package."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from kprune.errors import KpruneError

TOLERANCE = 1e-3
"""Largest accepted difference of a float32 file's logits, relative to logits above 1."""
PACKAGE = "llama_cpp"


def has_llama_cpp() -> bool:
    """Whether llama.cpp's Python package is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def start_llama_cpp(path: Path, context: int) -> Any:
    """The file in llama.cpp, with keys and values in float32: llama.cpp keeps them in float16 otherwise."""
    import llama_cpp

    return llama_cpp.Llama(
        str(path),
        n_ctx=context,
        n_batch=context,
        logits_all=True,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        flash_attn=False,
        n_threads=torch.get_num_threads(),
        n_threads_batch=torch.get_num_threads(),
        verbose=False,
    )


@torch.no_grad()
def gguf_difference(path: Path, model: PreTrainedModel, tokenizer: Any, texts: Sequence[str], longest: int) -> float:
    """Largest difference of the logits from torch's, relative to logits above 1; raises if a text has other tokens."""
    runtime, gaps = start_llama_cpp(path, longest), [0.0]
    try:
        for text in texts:
            ours, theirs = tokenizer(text)["input_ids"], runtime.tokenize(text.encode(), add_bos=True, special=True)
            if ours != theirs:
                raise KpruneError(
                    f"llama.cpp reads {text!r:.60} as other tokens than the tokenizer; nothing was written. Please "
                    "report it with tokenizer.json."
                )
            if ids := ours[:longest]:
                gaps.append(relative_gap(logits_of(runtime, ids), model(torch.tensor([ids])).logits[0]))
    finally:
        runtime.close()
    return float(torch.tensor(gaps).max())  # NaN if one is


def relative_gap(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to expected values above 1."""
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1.0))


def logits_of(runtime: Any, ids: Sequence[int]) -> torch.Tensor:
    """llama.cpp's logits for the token after each of the given ones, (length, vocabulary)."""
    runtime.reset()
    runtime.eval(list(ids))
    return torch.from_numpy(runtime.scores[: len(ids)].copy())


def require_near(dtype: str, largest: float) -> None:
    """Raise if a float32 file differs from torch, or if any file gives what is no number.

    llama.cpp rounds the inputs of float16 matrices, too, which can change single places by more than any fixed limit.
    """
    if not largest <= (TOLERANCE if dtype == "float32" else float("inf")):
        raise KpruneError(
            f"the gguf file differs from torch by {largest:.2g}, more than {TOLERANCE:g}; nothing was written. "
            "Please report it with config.json."
        )
