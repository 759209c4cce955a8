"""Names of model folders, and of the files in them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kprune.errors import BadCheckpoint

SIDE_SUFFIXES = {".json", ".txt", ".model", ".jinja"}
"""Suffixes of tokenizer, label and generation files, which are copied unchanged."""
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
"""Files that could run code when they are loaded; they are never copied."""
REWRITTEN_FILES = {"config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json"}
"""Files that `save_pretrained` writes anew."""
MODELING_FILE = "modeling_pruned.py"
"""The code of a self-contained folder; no other code is written, or copied."""
GRAPH_FILES = {"model.onnx", "model_quantized.onnx", "openvino_model.xml", "openvino_model.bin", "model.gguf"}
"""Files of exported graphs, which hold the weights."""


def copy_side_files(source: Path, target: Path) -> None:
    """Copy the files that are not rewritten: those of the tokenizer, the processor and the labels."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and file.suffix in SIDE_SUFFIXES and file.name not in REWRITTEN_FILES:
            shutil.copyfile(file, target / file.name)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no file or no object."""
    try:
        content = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path} is not JSON ({error}); restore it.") from error
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: Any) -> None:
    """Write a value as indented JSON."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def short_names(names: Sequence[str]) -> list[str]:
    """The last parts of paths, as many as it takes to tell them apart."""
    for parts in range(1, 10):
        short = ["/".join(Path(name).parts[-parts:]) for name in names]
        if len(set(short)) == len(short):
            return short
    return [f"{Path(name).name} ({number})" for number, name in enumerate(names, 1)]


PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""Files with the settings of an image processor or a feature extractor; a folder has one of them."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
"""Files with a tokenizer's vocabulary; every tokenizer has one of them."""
