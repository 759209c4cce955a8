"""The command line in this process, and checkpoints for it."""

from __future__ import annotations

from pathlib import Path

import tiny
import torch
import zoo
from click.testing import CliRunner, Result
from task_data import load_decoder_tokenizer, load_tokenizer

from kprune.cli.main import main
from kprune.data.calibration import python_documentation

CLASSES = ("bad", "fair", "good")


def kprune(*arguments: object) -> Result:
    """Run a command and return its exit code and output."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def write_checkpoint(folder: Path, kind: str = "classification", *, half: bool = False, **changes: object) -> Path:
    """Write a tiny model with a real tokenizer; returns `folder`."""
    tokenizer = load_tokenizer()
    model = tiny.tiny_model("bert", kind, vocab_size=len(tokenizer), pad_token_id=0, **changes)
    (model.half() if half else model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_decoder(
    folder: Path, kind: str = "causal language model", name: str = "llama", seed: int = 0, **changes: object
) -> Path:
    """Write a tiny decoder with a tokenizer that has an end-of-text token and no padding token; returns `folder`."""
    tokenizer = load_decoder_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 512, "pad_token_id": None}
    tokens = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    model = zoo.build(name, kind, **{**sizes, **tokens, **changes})
    with torch.no_grad():  # smaller logits than the zoo's: predictions of a language model are not certain
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator)).mul_(0.6)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_text(path: Path, lines: int = 300) -> Path:
    """Write real text, one example per line; returns `path`."""
    path.write_text("\n".join(python_documentation()[:lines]), encoding="utf-8")
    return path


def write_table(path: Path, rows: int = 120, text: str = "text", label: str = "verdict") -> Path:
    """Write a CSV file of texts and class names; returns `path`."""
    texts = [line.replace('"', "")[:200] for line in python_documentation()[:rows]]
    lines = [f'"{line}",{CLASSES[number % 3]}' for number, line in enumerate(texts)]
    path.write_text("\n".join([f"{text},{label}", *lines]), encoding="utf-8")
    return path
