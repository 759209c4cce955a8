"""Models and tests for the tests of evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import tiny
import torch
from task_data import example, load_tokenizer
from transformers import PreTrainedModel

from kprune import Evaluation, Test, evaluate
from kprune.data.calibration import python_documentation
from kprune.data.tasks import TASKS

PARAGRAPHS = python_documentation()[:300]


def model_for(kind: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A new tiny model of a kind that reads the real tokenizer's tokens."""
    sizes = {"vocab_size": len(load_tokenizer()), "max_position_embeddings": 512, "pad_token_id": 0}
    return tiny.tiny_model("bert", kind, seed, **sizes, **changes)


@cache
def shared_model(kind: str, seed: int = 0, **changes: int) -> PreTrainedModel:
    """The same as `model_for`, built once; a test must not change it."""
    return model_for(kind, seed, **changes)


def score(model: PreTrainedModel, test: Test, **options: Any) -> Evaluation:
    """`evaluate` with the real tokenizer."""
    return evaluate(model, load_tokenizer(), test, **options)


def paragraphs(count: int) -> list[tuple[str]]:
    """Rows of one real paragraph each."""
    return [(text,) for text in PARAGRAPHS[:count]]


def unlabelled(rows: Any) -> Test:
    return Test("mine", None, rows, None)


def made_up(name: str, count: int = 24) -> Test:
    """A made-up test with a task's columns and labels, of mixed lengths."""
    task = TASKS[name]
    words = PARAGRAPHS[5].split()
    made = [example(task, number) for number in range(count)]
    texts = [
        tuple(f"{row[column]} {' '.join(words[: 7 * number % 23])}" for column in task.texts)
        for number, row in enumerate(made)
    ]
    references = None if task.label is None else [row[task.label] for row in made]
    return Test(name, task.kind, texts, references, task.metrics, task.labels)


def one_by_one(model: PreTrainedModel, rows: Any) -> Iterator[Any]:
    """The plain model's outputs, one row at a time, and so without padding and batches."""
    with torch.no_grad():
        for row in rows:
            yield model(**load_tokenizer()(*row, return_tensors="pt"))
