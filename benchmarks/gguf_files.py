"""What llama.cpp makes of a decoder's GGUF file, compared with torch.

    pip install gguf llama-cpp-python
    python benchmarks/gguf_files.py --model SMOLLM2 --text c4.jsonl --out benchmarks/results/gguf.jsonl

Three models are exported in float32 and float16: one that is cut unevenly, with emptied attentions, emptied
feed-forward sublayers and an emptied layer; the dense model; and the same model pruned. For each file, on documents
that are not in the sample: the largest difference of the logits, relative to logits above 1; the share of places with
the same most likely token; and how many greedily written tokens come before the first other one. llama.cpp keeps keys
and values in float32 here; `default_cache` is the difference with its own default, float16. Both sides tokenise all
documents.
Variants that the file has already are not run again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import torch
from machine import provenance
from transformers import PreTrainedModel

import kprune
from kprune import Source, export
from kprune.deploy.gguf import DTYPES
from kprune.deploy.gguf_check import TOLERANCE, logits_of, relative_gap, start_llama_cpp
from kprune.models.pruned_shape import describe
from kprune.models.resize import keep_first
from kprune.models.sublayer import find

VARIANTS = ("cut", "dense", "pruned")
SAMPLED = 200
"""Documents of the sample; those after them are compared."""
PROMPT, WRITTEN = 32, 32
"""Tokens of a text that is continued, and tokens that are written."""
ODD = ("", " ", "\n\n\n  x", "a\tb\r\nc", "I'll, YOU'LL 12345 3.14 ½ ²", "naïve Größe 東京 🙂 e\u0301", "<|im_start|>a")
"""Texts in which tokenizers often differ."""


def cut(source: Source, folder: Path) -> Source:
    """The model with other numbers of units in every layer: no attention, no neurons, or neither in some."""
    model = source.load()
    for sublayer in find(model):
        attention_only, ffn_only, none = sublayer.index % 10 == 3, sublayer.index % 10 in (0, 6), sublayer.index == 8
        is_empty = none or (attention_only if sublayer.kind == "ffn" else ffn_only)
        keep_first(sublayer, 0 if is_empty else sublayer.units - sublayer.index % 3)
    model.config.quantization_config = describe(model, [])
    source.copy_to(folder)
    model.save_pretrained(folder)
    return Source(folder, name=f"{source.title}, cut")


def pruned(source: Source, texts: Sequence[str], folder: Path, tokens: int) -> Source:
    """The model without a fifth of its FLOPs."""
    result = kprune.prune(source, texts[:SAMPLED], reduction=0.2, tokens=tokens, max_length=256, ridge=1e-2)
    kprune.save(result, folder)
    return Source(folder, name=f"{source.title}, pruned")


@torch.no_grad()
def torch_outputs(model: PreTrainedModel, inputs: list[list[int]]) -> tuple[list[torch.Tensor], list[list[int]]]:
    """Torch's logits of the token after each of the given ones, and its greedy continuations of their beginnings."""
    call: Any = model
    generate: Any = model.generate
    prompts = [torch.tensor([ids[:PROMPT]]) for ids in inputs]
    return (
        [call(torch.tensor([ids])).logits[0] for ids in inputs],
        [generate(ids, max_new_tokens=WRITTEN, do_sample=False, eos_token_id=None)[0].tolist() for ids in prompts],
    )


def written_alike(runtime: Any, expected: list[int]) -> int:
    """How many greedily written tokens are the same, until the first other one."""
    found = expected[:PROMPT]
    scores = logits_of(runtime, found)[-1]
    while len(found) < len(expected) and (token := int(scores.argmax())) == expected[len(found)]:
        found.append(token)
        runtime.eval([token])
        scores = torch.from_numpy(runtime.scores[len(found) - 1])
    return len(found) - PROMPT


def tokenised_alike(runtime: Any, tokenizer: Any, rows: Sequence[str]) -> str:
    """On how many texts both sides agree."""
    read = [runtime.tokenize(row.encode(), add_bos=True, special=True) for row in rows]
    same = sum(ours == tokenizer(row)["input_ids"] for ours, row in zip(read, rows, strict=True))
    return f"{same} of {len(rows)}"


def compare(file: Path, tokenizer: Any, texts: Sequence[str], inputs: list[list[int]], expected: Any) -> dict[str, Any]:
    """How far llama.cpp's reading of the file is from torch's outputs."""
    import llama_cpp

    logits, continued = expected
    context = max(PROMPT + WRITTEN, *map(len, inputs))
    runtime = start_llama_cpp(file, context)
    found = [logits_of(runtime, ids) for ids in inputs]
    gaps = [relative_gap(ours, theirs) for ours, theirs in zip(found, logits, strict=True)]
    agree = torch.cat([ours.argmax(-1) == theirs.argmax(-1) for ours, theirs in zip(found, logits, strict=True)])
    figures = {
        "difference": float(torch.tensor(gaps).max()),
        "same_most_likely": f"{int(agree.sum())} of {len(agree)}",
        "written_alike": [written_alike(runtime, ids) for ids in continued],
        "tokenised_alike": tokenised_alike(runtime, tokenizer, [*texts, *ODD]),
    }
    runtime.close()
    runtime = llama_cpp.Llama(str(file), n_ctx=context, n_batch=context, logits_all=True, verbose=False)
    gaps = [relative_gap(logits_of(runtime, ids), theirs) for ids, theirs in zip(inputs, logits, strict=True)]
    runtime.close()
    return {**figures, "default_cache": float(torch.tensor(gaps).max())}


def measure(source: Source, texts: Sequence[str], compared: Sequence[str], length: int) -> Iterator[dict[str, Any]]:
    """A line for each type of weights."""
    model, tokenizer = source.load().float().eval(), source.load_tokenizer()
    inputs = [tokenizer(text)["input_ids"][:length] for text in compared]
    expected, units = torch_outputs(model, inputs), [each.units for each in find(model)]
    for dtype in DTYPES:
        with TemporaryDirectory() as root:
            exported = export(source, Path(root) / "file", to="gguf", dtype=dtype, texts=compared, model=model)
            line = {"dtype": dtype, "bytes": exported.bytes[1], "heads": units[::2], "neurons": units[1::2]}
            yield {**line, **compare(exported.file, tokenizer, texts, inputs, expected)}


@click.command()
@click.option("--model", required=True, help="Folder of a Llama-like decoder.")
@click.option("--text", required=True, type=click.Path(path_type=Path), help="JSON lines with a column `text`.")
@click.option("--variant", "chosen", multiple=True, type=click.Choice(VARIANTS), default=VARIANTS, help="Only these.")
@click.option("--tokens", default=4096, show_default=True, help="Size of the sample for pruning.")
@click.option("--documents", default=8, show_default=True, help="Documents that are compared.")
@click.option("--length", default=128, show_default=True, help="Tokens of each that are compared.")
@click.option("--out", type=click.Path(path_type=Path))
def main(
    model: str, text: Path, chosen: tuple[str, ...], tokens: int, documents: int, length: int, out: Path | None
) -> None:
    """Export, compare, print a line per file, and fail if a float32 one differs."""
    import llama_cpp

    texts = [json.loads(line)["text"] for line in text.read_text("utf-8").splitlines()]
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out and out.exists() else []
    known, compared = {line["variant"] for line in lines}, texts[SAMPLED : SAMPLED + documents]
    origin = {"programs": {"gguf": version("gguf"), "llama-cpp-python": llama_cpp.__version__}, **provenance()}
    with TemporaryDirectory() as folder:
        source, root = Source(model), Path(folder)
        variants: dict[str, Callable[[], Source]] = {
            "cut": lambda: cut(source, root / "cut"),
            "dense": lambda: source,
            "pruned": lambda: pruned(source, texts, root / "pruned", tokens),
        }
        for name in [each for each in chosen if each not in known]:
            measured = measure(variants[name](), texts, compared, length)
            found = [{"model": source.title, "variant": name, **line} for line in measured]
            lines += found
            click.echo("\n".join(map(json.dumps, found)))
            if out:
                with out.open("a") as file:
                    file.writelines(json.dumps({**line, **origin}) + "\n" for line in found)
    wrong = [each for each in lines if each["dtype"] == "float32" and not each["difference"] <= TOLERANCE]
    if wrong:
        raise click.ClickException(f"{len(wrong)} files differ from torch, first {wrong[0]}")


if __name__ == "__main__":
    main()
