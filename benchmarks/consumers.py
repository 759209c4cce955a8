"""What programs make of a folder in the hub layout, compared with torch.

    python -m venv programs && programs/bin/pip install optimum-onnx optimum-intel fastembed sentence-transformers
    npm install --prefix scripts @huggingface/transformers
    python benchmarks/consumers.py --python programs/bin/python --node scripts --out benchmarks/results/consumers.jsonl

A dense model is cut unevenly, with one emptied attention and one emptied feed-forward sublayer; a pruned one is taken
as it is. The model is exported with `--layout hub`. The snippets of the folder's card then run in processes of their
own: those that import kprune and those of plain graphs in this environment, JavaScript in Node, the rest in the
environment that `--python` names, which needs no kprune. Their outputs are compared with torch's, relative to outputs
above 1. Snippets that read `model.onnx` also run with int8 weights, whose difference is reported only. The server's
command is not run. Models that the file has already are not run again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy
import torch
from machine import provenance
from numpy.typing import NDArray
from transformers import PreTrainedModel

from kprune import Source, export
from kprune.deploy.graphs import output_values
from kprune.deploy.hub_card import Section, sections
from kprune.deploy.hub_folder import describe_served
from kprune.jobs.demo import embedded_model
from kprune.models.canonical import to_canonical
from kprune.models.native import history_of
from kprune.models.pruned_shape import describe
from kprune.models.resize import keep_first
from kprune.models.sublayer import find

LIMIT = 1e-4
TEXTS = (["A text.", "Another text, which is longer."],)
PAIRS = (["What is it?", "How long is it?"], ["It is a text.", "Another, longer text."])
SAVE = "\nimport numpy\nnumpy.save('found.npy', numpy.asarray(outputs))\n"
SAVE_SCRIPT = """
import { writeFileSync } from "node:fs";
writeFileSync("found.json", JSON.stringify(outputs.tolist()));
"""
VERSIONS = """
import importlib.metadata, json
names = ("fastembed", "onnxruntime", "openvino", "optimum", "optimum-intel", "optimum-onnx", "sentence-transformers",
         "transformers")
found = {each.metadata["Name"].lower(): each.version for each in reversed(list(importlib.metadata.distributions()))}
print(json.dumps({name: found.get(name) for name in names}))
"""


def cut(source: Source, folder: Path) -> Source:
    """The model with other numbers of units in every layer, in a folder with all of its files."""
    model = source.load().float()
    to_canonical(model)
    for number, sublayer in enumerate(find(model)):
        keep_first(sublayer, 0 if number in (2, 5) else sublayer.units // (number % 3 + 1))
    model.config.quantization_config = describe(model, [])
    source.copy_to(folder)
    model.save_pretrained(folder / source.encoder_path)
    return Source(folder, name=source.name)


@torch.no_grad()
def expected_outputs(source: Source, model: PreTrainedModel) -> dict[str, NDArray[Any]]:
    """Torch's outputs for the texts of the card."""
    served = describe_served(source, model.float().eval())
    reads_pairs = served.sentence_class == "CrossEncoder" or type(model).__name__.endswith("QuestionAnswering")
    inputs = served.tokenizer(*(PAIRS if reads_pairs else TEXTS), padding=True, truncation=True, return_tensors="pt")
    activation = getattr(torch.nn, served.activation)()
    values = output_values(served.model, inputs, served.pooling)
    return {name: activation(value).numpy() for name, value in values.items()}


def run_section(section: Section, folder: Path, python: str, node: Path | None) -> NDArray[Any]:
    """The outputs of a snippet, run in the folder's parent."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    if section.language == "javascript":
        link = folder.parent / "node_modules"
        if node is not None and not link.exists():
            link.symlink_to(node.resolve() / "node_modules")
        (folder.parent / "snippet.mjs").write_text(section.code + SAVE_SCRIPT)
        words, saved = ["node", "snippet.mjs"], folder.parent / "found.json"
    else:
        words, saved = [python, "-c", section.code + SAVE], folder.parent / "found.npy"
        if python != sys.executable:
            environment.pop("PYTHONPATH", None)
    saved.unlink(missing_ok=True)
    done = subprocess.run(words, cwd=folder.parent, capture_output=True, text=True, check=False, env=environment)
    if not saved.exists():
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(
            next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "nothing")
        )
    found = json.loads(saved.read_text()) if saved.suffix == ".json" else numpy.load(saved)
    return numpy.asarray(found, dtype=numpy.float32)


def variants(section: Section) -> Iterator[tuple[str, Section]]:
    """The snippet as it is and, if it reads an ONNX file, with int8 weights."""
    yield "float32", section
    if "model.onnx" in section.code or 'dtype: "fp32"' in section.code:
        code = section.code.replace("model.onnx", "model_quantized.onnx").replace('dtype: "fp32"', 'dtype: "q8"')
        yield "int8", Section(section.title, section.language, code)


def gap(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest difference, relative to outputs above 1."""
    return float(numpy.abs(found.reshape(expected.shape) - expected).max() / max(1.0, numpy.abs(expected).max()))


def compare(source: Source, root: Path, python: str, node: Path | None) -> Iterator[dict[str, Any]]:
    """A line for each snippet and type of weights."""
    small = source if history_of(source.load_config()) else cut(source, root / "cut")
    folder = root / "served"
    exported = export(small, folder, layout="hub")
    model = small.load()
    expected = expected_outputs(small, model)
    for section in sections(describe_served(small, model), folder.name):
        if section.language == "bash":
            continue
        ours = "import kprune" in section.code or section.title in ("ONNX Runtime", "OpenVINO")
        name = next((name for name in expected if name in section.code), exported.outputs[-1])
        for weights, variant in variants(section):
            line = {"model": source.title, "class": type(model).__name__, "program": section.title, "weights": weights}
            try:
                found = run_section(variant, folder, sys.executable if ours else python, node)
                yield {**line, "difference": gap(found, expected[name])}
            except (RuntimeError, ValueError, OSError) as error:
                yield {**line, "error": str(error)[:300]}


def versions_of(python: str, node: Path | None) -> dict[str, str | None]:
    """Versions of the programs."""
    words = [python, "-c", VERSIONS]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found: dict[str, str | None] = json.loads(
        subprocess.run(words, capture_output=True, text=True, check=True, env=clean).stdout
    )
    if node is not None:
        package = node / "node_modules/@huggingface/transformers/package.json"
        found["@huggingface/transformers"] = json.loads(package.read_text())["version"]
    return found


@click.command()
@click.option("--model", "models", multiple=True, help="A model folder.  [default: all-MiniLM-L6-v2]")
@click.option("--python", default=sys.executable, help="Python with the programs.  [default: this one]")
@click.option("--node", type=click.Path(path_type=Path), help="Folder with node_modules.")
@click.option("--out", type=click.Path(path_type=Path))
def main(models: tuple[str, ...], python: str, node: Path | None, out: Path | None) -> None:
    """Run all snippets of all models, print and write a line for each, and fail if a float32 one differs."""
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out and out.exists() else []
    known, origin = {line["model"] for line in lines}, {"programs": versions_of(python, node), **provenance()}
    for source in [Source(model) for model in models] or [embedded_model()]:
        if source.title in known:
            continue
        with TemporaryDirectory() as root:
            for line in compare(source, Path(root), python, node):
                lines.append(line)
                click.echo(f"{line['model']}, {line['program']}, {line['weights']}: {line.get('difference', line)}")
                if out:
                    with out.open("a") as file:
                        file.write(json.dumps({**line, **origin}) + "\n")
    wrong = [each for each in lines if "error" in each or (each["weights"] == "float32" and each["difference"] > LIMIT)]
    if wrong:
        raise click.ClickException(f"{len(wrong)} snippets fail or differ by more than {LIMIT:g}, first {wrong[0]}")


if __name__ == "__main__":
    main()
