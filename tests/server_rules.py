"""What Text Embeddings Inference needs of a folder, by its parsers: fields, types, and names that exclude others."""

import json
from pathlib import Path

SIZES = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "max_position_embeddings": "n_positions"}
"""Sizes, each with another name that the server reads; it refuses a config with both."""
FLAGS = ("pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_max_tokens")
"""Fields of the pooling's config without which it is not read."""


def read(file: Path) -> dict:
    return json.loads(file.read_text()) if file.is_file() else {}


def broken_rules(folder: Path) -> list[str]:
    """A sentence for each rule that a folder breaks."""
    return [*_config_rules(read(folder / "config.json")), *_other_rules(folder)]


def _config_rules(config: dict) -> list[str]:
    broken = []
    for name, alias in SIZES.items():
        if [type(config.get(each)) for each in (name, alias) if each in config] != [int]:
            broken.append(f"{name} and {alias} are {config.get(name)!r} and {config.get(alias)!r}")
    if type(config.get("pad_token_id")) is not int:
        broken.append(f"pad_token_id is {config.get('pad_token_id')!r}")
    if config["architectures"][0].endswith("Classification"):
        names, numbers = config.get("id2label") or {}, config.get("label2id") or {}
        if not names or {int(number): label for number, label in names.items()} != {n: x for x, n in numbers.items()}:
            broken.append(f"id2label and label2id are {names} and {numbers}")
    return broken


def _other_rules(folder: Path) -> list[str]:
    broken = [f"there is no {name}" for name in ("tokenizer.json",) if not (folder / name).is_file()]
    pooling = read(folder / "1_Pooling/config.json")
    if pooling:
        broken += [f"{flag} is {pooling.get(flag)!r}" for flag in FLAGS if type(pooling.get(flag)) is not bool]
        chosen = [name for name, on in pooling.items() if name.startswith("pooling_mode_") and on]
        broken += [f"the pooling is {chosen}"] * (len(chosen) != 1)
    sentences = folder / "sentence_bert_config.json"
    if sentences.is_file() and type(read(sentences).get("max_seq_length")) is not int:
        broken.append("max_seq_length is missing")
    if (folder / "modules.json").is_file() and not pooling and "1_Pooling" in (folder / "modules.json").read_text():
        broken.append("there is no 1_Pooling")
    return broken
