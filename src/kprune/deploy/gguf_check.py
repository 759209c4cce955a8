"""Compare a GGUF file with torch, in llama.cpp's Python package."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from kprune.errors import KpruneError

TOLERANCES = {"float32": 1e-4, "float16": 5e-2}
"""Largest accepted difference of logits, relative to logits above 1, by the type of the weights."""
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
    """Raise if a file differs from torch by more than its type of weights explains."""
    if not largest <= TOLERANCES[dtype]:
        raise KpruneError(
            f"the gguf file differs from torch by {largest:.2g}, more than {TOLERANCES[dtype]:g}; nothing was written. "
            "Please report it with config.json."
        )
