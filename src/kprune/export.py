"""A checkpoint's folder as a folder for ONNX Runtime or OpenVINO: written, run on real text, and only then good."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.card import export_card
from kprune.data import longest_input, python_documentation
from kprune.errors import KpruneError
from kprune.graphs import TARGETS, Run, graph_files, output_names, require, served, start, write
from kprune.store import Source, whole_or_absent

TOLERANCE = 1e-4
"""The largest difference to torch that a float32 graph may show, on outputs of the size of 1 or less."""
CHECKED = 64
"""Texts that a graph is checked on."""
CHECKED_BATCH = 8
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)


@dataclass(frozen=True)
class Exported:
    """A graph that was written, and how near it is to the model."""

    folder: Path
    file: Path
    """The graph itself."""
    target: str
    int8: bool
    texts: int
    """How many it was checked on."""
    difference: float
    """The largest difference to torch in any output, on real tokens."""
    bytes: tuple[int, int]
    """Weights on disk before, and the graph."""
    outputs: list[str]

    def model(self, model: PreTrainedModel) -> PreTrainedModel:
        """The model's likeness that runs the graph, to be evaluated like any other."""
        return served(model, start(self.file), self.outputs)


def export(
    source: Source,
    folder: Path,
    *,
    to: str = "onnx",
    int8: bool = False,
    texts: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write a model's folder as one for another runtime, and check it against torch on texts of mixed length.

    Without `texts`, Python's documentation is read. A float32 graph that differs by more than 1e-4 (times the size of
    the outputs, where that is above 1) is not left there; an int8 one differs by design, and is told about.
    """
    if to not in TARGETS:
        raise KpruneError(f"cannot export to {to!r}; use one of {', '.join(TARGETS)}.")
    target = TARGETS[to]
    require(target)
    require_apart(source, folder)
    model = source.load().float().eval()
    batches = _encoded(source, model, list(texts or python_documentation())[:CHECKED])
    outputs = output_names(model, batches[0])
    checked = sum(len(batch["input_ids"]) for batch in batches)
    with whole_or_absent(folder, overwrite=overwrite) as partial:
        source.copy_to(partial)
        file = partial / source.encoder_path / target.file
        _config(model).save_pretrained(file.parent)
        if not (file.parent / "tokenizer.json").exists():
            source.load_tokenizer().save_pretrained(file.parent)
        write(model, batches[0], file, int8=int8)
        gap, size = difference(model, start(file), outputs, batches)
        if not int8 and gap > TOLERANCE * max(1.0, size):
            raise KpruneError(
                f"the {to} graph differs from torch by {gap:.2g}, more than {TOLERANCE:g}; nothing was written. "
                "Please report it with the model's config."
            )
        before = sum(each.stat().st_size for each in source.encoder.glob("*.safetensors"))
        after = sum(each.stat().st_size for each in graph_files(file))
        card = export_card(
            source.name,
            folder=source.encoder_path,
            file=target.file,
            target=to,
            int8=int8,
            difference=gap,
            texts=checked,
            inputs=list(batches[0]),
            outputs=outputs,
        )
        (partial / "README.md").write_text(card, encoding="utf-8")
    return Exported(
        folder=folder,
        file=folder / source.encoder_path / target.file,
        target=to,
        int8=int8,
        texts=checked,
        difference=gap,
        bytes=(before, after),
        outputs=outputs,
    )


def require_apart(source: Source, folder: Path) -> None:
    """Refuse to write over the model itself, into it or around it."""
    ours, theirs = folder.resolve(), source.folder.resolve()
    if ours == theirs or ours in theirs.parents or theirs in ours.parents:
        raise KpruneError(f"{folder} is, holds or lies in the folder of {source.name} itself; choose another.")


def _config(model: PreTrainedModel) -> Any:
    """The config without the pruning record: a graph has its sizes in itself, and loaders would look for a plug-in."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


def _encoded(source: Source, model: PreTrainedModel, texts: Sequence[str]) -> list[dict[str, Tensor]]:
    if not any((source.encoder / name).is_file() for name in TOKENIZER_FILES):
        raise KpruneError(f"{source.encoder} has no tokenizer, so nothing can be checked on text; add its files.")
    tokenizer = source.load_tokenizer()
    longest = longest_input(tokenizer, model.config)
    return [
        dict(
            tokenizer(
                list(texts[first : first + CHECKED_BATCH]),
                padding=True,
                truncation=True,
                max_length=longest,
                return_tensors="pt",
            )
        )
        for first in range(0, len(texts), CHECKED_BATCH)
    ]


@torch.no_grad()
def difference(
    model: PreTrainedModel, run: Run, outputs: list[str], batches: list[dict[str, Tensor]]
) -> tuple[float, float]:
    """The largest difference of a graph's outputs to torch's, real tokens only, and the largest output."""
    largest = size = 0.0
    for batch in batches:
        found = model(**batch, return_dict=True)
        for name, theirs in zip(outputs, run(batch), strict=True):
            ours = found[name]
            if ours.shape != theirs.shape:
                raise KpruneError(f"the graph's {name} have shape {tuple(theirs.shape)}, torch's {tuple(ours.shape)}.")
            if ours.shape[:2] == batch["input_ids"].shape:
                real = batch["attention_mask"].bool()
                ours, theirs = ours[real], theirs[real]
            gap = float((ours - theirs).abs().max())
            if gap != gap:
                raise KpruneError(f"the graph's {name} are not numbers (NaN); nothing was written.")
            largest, size = max(largest, gap), max(size, float(ours.abs().max()))
    return largest, size
