"""The tokenizer of a hub folder: every program that reads it truncates, pads and returns the same inputs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from kprune.checkpoints.files import read_json, write_json
from kprune.errors import KpruneError, UnsupportedModel

LEFT_OUT = ("backend", "is_local", "local_files_only", "max_length")
"""Keys of tokenizer_config.json that describe one past call; fastembed truncates at `max_length`."""


def padded(tokenizer: Any, pad: int | None = None) -> Any:
    """The tokenizer; if it has no padding token, the model's `pad` or else the end-of-text token pads."""
    if tokenizer.pad_token_id is None:
        pad = tokenizer.eos_token_id if pad is None else pad
        if pad is None:
            raise UnsupportedModel(
                "the tokenizer has neither a padding token nor an end-of-text token, so servers cannot batch texts; "
                "set pad_token in tokenizer_config.json."
            )
        if not 0 <= pad < len(tokenizer):
            raise UnsupportedModel(
                f"the model pads with token {pad}, and its tokenizer has the tokens 0 to {len(tokenizer) - 1}; set "
                "pad_token_id in config.json, or pad_token in tokenizer_config.json."
            )
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad)
    return tokenizer


def write_tokenizer(tokenizer: Any, folder: Path, *, max_length: int, inputs: Sequence[str]) -> None:
    """Write the files of a tokenizer that can pad, or complete those that the folder has; `inputs` are the graph's."""
    with TemporaryDirectory() as scratch:
        tokenizer.save_pretrained(scratch)
        for file in Path(scratch).iterdir():
            if not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)
    if not (folder / "tokenizer.json").is_file():
        raise UnsupportedModel("the tokenizer has no tokenizer.json, which servers read; use --layout plain.")
    fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
    fast.enable_truncation(max_length, direction=tokenizer.truncation_side)
    fast.enable_padding(
        direction=tokenizer.padding_side,
        pad_token=tokenizer.pad_token,
        pad_id=tokenizer.pad_token_id,
        pad_type_id=tokenizer.pad_token_type_id,
    )
    fast.save(str(folder / "tokenizer.json"))
    before = read_json(folder / "tokenizer_config.json")
    write_json(folder / "tokenizer_config.json", tokenizer_config(before, tokenizer, max_length, inputs))
    tokens = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    write_json(folder / "special_tokens_map.json", tokens)


def tokenizer_config(before: dict[str, Any], tokenizer: Any, max_length: int, inputs: Sequence[str]) -> dict[str, Any]:
    """The content of tokenizer_config.json, for transformers 4 and 5 and for programs that do not use transformers."""
    config = {name: value for name, value in before.items() if name not in LEFT_OUT}
    if isinstance(config.get("extra_special_tokens"), list):  # transformers 4 expects a name for each
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    if not str(config.get("tokenizer_class")).endswith(("Tokenizer", "TokenizerFast")):
        config["tokenizer_class"] = "PreTrainedTokenizerFast"  # transformers 4 has no TokenizersBackend
    return {
        **config,
        "model_max_length": max_length,
        "model_input_names": list(inputs),
        "pad_token": tokenizer.pad_token,
        "padding_side": tokenizer.padding_side,
    }


def require_same_tokens(tokenizer: Any, folder: Path, texts: Sequence[str], *, max_length: int) -> None:
    """Raise if the written tokenizer reads a text otherwise than the given one."""
    written = AutoTokenizer.from_pretrained(folder)
    for text in texts:
        ours, theirs = (
            each(text, truncation=True, max_length=max_length)["input_ids"] for each in (tokenizer, written)
        )
        if ours != theirs:
            raise KpruneError(
                f"the tokenizer changes when it is written ({text!r:.60}); please report it with tokenizer_config.json."
            )
