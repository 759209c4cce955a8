"""The tokenizer of a GGUF file: only one that llama.cpp computes as the tokenizers library does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kprune.errors import UnsupportedModel

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
SPLITTERS: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "gpt-2": ([BYTES], False),
    "smollm": ([{"type": "Digits", "individual_digits": True}, BYTES], False),
    "llama-bpe": (
        [
            {"type": "Split", "pattern": {"Regex": LLAMA3_PATTERN}, "behavior": "Isolated", "invert": False},
            {**BYTES, "use_regex": False},
        ],
        True,
    ),
}
"""How text is split before merging, by llama.cpp's name: the steps of tokenizer.json, and its `ignore_merges`."""
UNUSED = {"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "byte_fallback": False}
"""Settings of a BPE model that llama.cpp does not have, with the values that switch them off."""


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF file says of a tokenizer."""

    splitter: str
    """llama.cpp's name of how text is split before merging."""
    tokens: list[str]
    kinds: list[str]
    """For each token: `NORMAL`, `CONTROL` (special), `USER_DEFINED` (added) or `UNUSED`."""
    merges: list[str]
    special: dict[str, int]
    """Numbers of the tokens `bos`, `eos`, `unk` and `pad`, as far as there are."""
    adds_bos: bool
    adds_eos: bool
    chat_template: str | None

    def add_to(self, writer: Any) -> None:
        """Add the tokenizer to a file."""
        import gguf

        writer.add_tokenizer_model("gpt2")  # byte-level BPE
        writer.add_tokenizer_pre(self.splitter)
        writer.add_token_list(self.tokens)
        writer.add_token_types([gguf.TokenType[kind] for kind in self.kinds])
        writer.add_token_merges(self.merges)
        for name, number in self.special.items():
            getattr(writer, f"add_{name}_token_id")(number)
        writer.add_add_bos_token(self.adds_bos)
        writer.add_add_eos_token(self.adds_eos)
        if self.chat_template is not None:
            writer.add_chat_template(self.chat_template)


def vocabulary_of(tokenizer: Any, size: int) -> Vocabulary:
    """The tokenizer as llama.cpp has it; `size` is the number of embeddings."""
    if not getattr(tokenizer, "is_fast", False):
        raise _refused("it has no tokenizer.json")
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    bpe = content["model"]
    splitter = _splitter(content, bpe)
    names = {number: token for token, number in bpe["vocab"].items()}
    added = {each["id"]: each for each in content["added_tokens"]}
    for token in added.values():
        if token["lstrip"] or token["rstrip"] or token["single_word"]:
            raise _refused(f"its token {token['content']!r} takes the spaces around it, or whole words only")
    names |= {number: token["content"] for number, token in added.items()}
    prefix, suffix = _affixes(tokenizer)
    template = tokenizer.chat_template
    return Vocabulary(
        splitter,
        tokens=[names.get(number, f"[PAD{number}]") for number in range(size)],
        kinds=[_kind(number, names, added) for number in range(size)],
        merges=[merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]],
        special=_special(tokenizer),
        adds_bos=bool(prefix),
        adds_eos=bool(suffix),
        chat_template=template if isinstance(template, str) else (template or {}).get("default"),
    )


def _splitter(content: dict[str, Any], bpe: dict[str, Any]) -> str:
    """llama.cpp's name for how the tokenizer normalises and splits text, if it has one."""
    if bpe["type"] != "BPE":
        raise _refused(f"its model is {bpe['type']}, not BPE")
    if content["normalizer"] is not None:
        raise _refused(f"it changes the text first ({content['normalizer']['type']})")
    for name, off in UNUSED.items():
        if bpe.get(name) not in (off, "" if off is None else off):
            raise _refused(f"it uses {name}")
    before = content["pre_tokenizer"] or {}
    steps = before.get("pretokenizers", [before])
    plain = [{name: value for name, value in step.items() if name != "trim_offsets"} for step in steps]
    for name, found in SPLITTERS.items():
        if found == (plain, bool(bpe.get("ignore_merges"))):
            return name
    raise _refused(f"llama.cpp has no name that kprune knows for how it splits text ({json.dumps(before)[:200]})")


def _kind(number: int, names: dict[int, str], added: dict[int, dict[str, Any]]) -> str:
    if number in added:
        return "CONTROL" if added[number]["special"] else "USER_DEFINED"
    return "NORMAL" if number in names else "UNUSED"


def _affixes(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The tokens that are put before and after every text: at most the first token and the last one."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    first = next((n for n in range(len(whole)) if whole[n : n + len(plain)] == plain), 0)
    prefix, suffix = whole[:first], whole[first + len(plain) :]
    if prefix not in ([], [tokenizer.bos_token_id]) or suffix not in ([], [tokenizer.eos_token_id]):
        raise _refused(f"it puts the tokens {prefix} before and {suffix} after a text, not bos_token and eos_token")
    return prefix, suffix


def _special(tokenizer: Any) -> dict[str, int]:
    """Numbers of the special tokens; without a first token, the last one is named, because llama.cpp names one."""
    if tokenizer.eos_token_id is None:
        raise _refused("it has no end-of-text token (eos_token), and llama.cpp would take another one for it")
    bos = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    numbers = {"bos": bos, "eos": tokenizer.eos_token_id, "unk": tokenizer.unk_token_id, "pad": tokenizer.pad_token_id}
    return {name: number for name, number in numbers.items() if number is not None}


def _refused(reason: str) -> UnsupportedModel:
    return UnsupportedModel(f"the tokenizer cannot be written as GGUF: {reason}; use another runtime.")
