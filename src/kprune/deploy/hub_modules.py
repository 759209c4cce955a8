"""The files of sentence-transformers in a hub folder, readable by its old and new versions and by other programs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from kprune.checkpoints.files import copy_side_files, read_json, write_json
from kprune.checkpoints.source import Source

POOLING_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""The flag of each pooling mode in configs before sentence-transformers 5.4."""
OLD_TYPES = {name: f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Normalize")}
"""Names of modules that all versions of sentence-transformers import."""
PLACES = {"Transformer": "", "MLMTransformer": "", "Pooling": "1_Pooling"}
"""Where servers look for the encoder and for the pooling."""


def write_modules(
    source: Source, folder: Path, *, sentence_class: str, pooling: str | None, max_length: int, width: int
) -> None:
    """Write the modules of a folder that sentence-transformers loads; a bare encoder gets pooling and normalisation."""
    modules: list[tuple[str, str]] = []  # none for rerankers of versions before 5.4
    if source.is_sentence_transformer:
        modules = [_place(source, entry, folder) for entry in source.modules]
    elif pooling is not None:
        modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
        settings: dict[str, Any] = {"model_type": sentence_class, "prompts": {}, "default_prompt_name": None}
        write_json(folder / "config_sentence_transformers.json", {**settings, "similarity_fn_name": "cosine"})
    if modules:
        entries = [
            {"idx": number, "name": str(number), "path": path, "type": OLD_TYPES.get(kind.split(".")[-1], kind)}
            for number, (path, kind) in enumerate(modules)
        ]
        write_json(folder / "modules.json", entries)
    if pooling is not None:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        write_json(folder / "1_Pooling/config.json", pooling_config(source.pooling_config(), pooling, width))
    before = read_json(source.encoder / "sentence_bert_config.json")
    lower_cases = bool(before.get("do_lower_case", False))
    # Versions before 5.4 refuse other keys in the config of an embedding model.
    kept = {} if sentence_class == "SentenceTransformer" else before
    written = {**kept, "max_seq_length": max_length, "do_lower_case": lower_cases}
    write_json(folder / "sentence_bert_config.json", written)


def _place(source: Source, entry: dict[str, str], folder: Path) -> tuple[str, str]:
    """The path of a module in the folder, and its type; copies its files, except those of encoder and pooling."""
    kind = entry["type"].split(".")[-1]
    if kind in PLACES:
        return PLACES[kind], entry["type"]
    before, after = source.folder / entry["path"], folder / entry["path"]
    if entry["path"] and before.is_dir():
        copy_side_files(before, after)
        if (before / "config.json").is_file():
            shutil.copyfile(before / "config.json", after / "config.json")
    return entry["path"], entry["type"]


def pooling_config(given: dict[str, Any], pooling: str, width: int) -> dict[str, Any]:
    """The config of the pooling in its old schema (a flag per mode) and in its new one (the mode's name).

    The new name of the width is left out: old versions refuse it, and new ones read the old name.
    """
    chosen = [mode for mode, flag in POOLING_FLAGS.items() if given.get(flag)]
    mode = given.get("pooling_mode", chosen[0] if chosen else pooling)
    return {
        "word_embedding_dimension": width,
        **{flag: name == mode for name, flag in POOLING_FLAGS.items()},
        "pooling_mode": mode,
        "include_prompt": given.get("include_prompt", True),
    }
