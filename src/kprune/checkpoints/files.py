"""Names of the files in a model folder."""

from __future__ import annotations

SIDE_SUFFIXES = {".json", ".txt", ".model", ".jinja"}
"""Suffixes of tokenizer, label and generation files, which are copied unchanged."""
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
"""Files that could run code when they are loaded; they are never copied."""
REWRITTEN_FILES = {"config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json"}
"""Files that `save_pretrained` writes anew."""
GRAPH_FILES = {"model.onnx", "openvino_model.xml", "openvino_model.bin"}
"""Files of exported graphs, which hold the weights."""
