"""Largest difference between torch and ONNX or OpenVINO, for every family and kind of output.

    python benchmarks/export.py --out benchmarks/results/export.jsonl
    python benchmarks/export.py --layout hub --out benchmarks/results/export-hub.jsonl

The models are small and built from configs. They are pruned unevenly, with one emptied attention and one emptied
feed-forward sublayer. Six families read 64 padded real sentences of mixed length; all others read random inputs of two
batch sizes. Only real tokens are compared; differences are relative to outputs above 1. Cases that the file has already
are not run again.

With `--layout hub`, every case is exported as a whole folder from made-up text, checked against the rules of Text
Embeddings Inference, and loaded again; a case that the layout refuses has the reason.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import torch
from machine import provenance
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from kprune import KpruneError, Source, export
from kprune.data.calibration import python_documentation
from kprune.deploy.graph_check import difference
from kprune.deploy.graphs import output_names
from kprune.deploy.onnx import to_onnx
from kprune.deploy.openvino import to_openvino
from kprune.deploy.targets import start
from kprune.jobs.demo import embedded_model
from kprune.models.canonical import to_canonical
from kprune.models.passes import run
from kprune.models.pruned_shape import describe
from kprune.models.resize import shrink
from kprune.models.sublayer import find

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import zoo  # type: ignore[import-not-found]
from server_rules import broken_rules  # type: ignore[import-not-found]
from task_data import load_decoder_tokenizer, word_tokenizer  # type: ignore[import-not-found]

Batches = list[dict[str, torch.Tensor]]
FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert")
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "classification": (AutoModelForSequenceClassification, {"num_labels": 3}),
    "multi-label": (AutoModelForSequenceClassification, {"problem_type": "multi_label_classification"}),
    "regression": (AutoModelForSequenceClassification, {"num_labels": 1}),
    "question answering": (AutoModelForQuestionAnswering, {}),
    "token classification": (AutoModelForTokenClassification, {"num_labels": 5}),
    "masked language model": (AutoModelForMaskedLM, {}),
    "embedding": (AutoModel, {}),
}
LIMIT = 1e-4
RESULTS = ("onnx", "openvino", "onnx int8", "refused", "error")
BYTE_LEVEL = ("qwen2",)
"""Families whose class of tokenizer reads bytes, whatever the folder says."""
TEXTS = [" ".join(f"w{20 + (7 * row + place) % 40}" for place in range(4 + 3 * row)) for row in range(8)]
"""Texts of mixed length that the tokenizer of made-up words reads; none has `w1`, which pads, in a word."""


def small_model(family: str, kind: str, vocabulary: int) -> PreTrainedModel:
    """A model of three layers with weights as large as trained ones, pruned unevenly."""
    loader, changes = KINDS[kind]
    names = {"dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 96}
    others = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}
    size = names if family == "distilbert" else others
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family, vocab_size=vocabulary, initializer_range=0.2, pad_token_id=0, **size, **changes
    )
    model: PreTrainedModel = loader.from_config(config).eval()
    prune_unevenly(model)
    return model


def prune_unevenly(model: PreTrainedModel) -> None:
    for number, sublayer in enumerate(find(model)):
        keep = torch.rand(sublayer.units) < 0.5
        keep[0] = True
        shrink(sublayer, keep & (number not in (0, 3)))


def sentence_cases() -> Iterator[tuple[str, str, PreTrainedModel, Batches]]:
    """Six families with every kind, and real sentences."""
    tokenizer = embedded_model().load_tokenizer()
    texts = python_documentation()[:64]
    encoded = [
        tokenizer(texts[n : n + 8], padding=True, truncation=True, max_length=128, return_tensors="pt")
        for n in range(0, 64, 8)
    ]
    for family, kind in product(FAMILIES, KINDS):
        model = small_model(family, kind, len(tokenizer))
        has_segments = getattr(model.config, "type_vocab_size", 0) > 1
        reads = ["input_ids", "attention_mask", *(["token_type_ids"] if has_segments else [])]
        yield family, kind, model, [{name: batch[name] for name in reads} for batch in encoded]


def random_cases() -> Iterator[tuple[str, str, PreTrainedModel, Batches]]:
    """All other families with every kind that their tests have."""
    for family, kind in zoo.CASES:
        if family not in FAMILIES:
            model = zoo.build(family, kind)
            to_canonical(model)
            prune_unevenly(model)
            yield family, kind, model, [*zoo.batches(model), *zoo.batches(model, examples=3)]


def differences(model: PreTrainedModel, batches: Batches) -> dict[str, float | str]:
    """The largest difference of each target's graph, or the exporter's error."""
    found: dict[str, float | str] = {}
    names = output_names(model, batches[0])
    with TemporaryDirectory() as folder:
        onnx, openvino = Path(folder) / "model.onnx", Path(folder) / "openvino_model.xml"
        for target, file in (("onnx", onnx), ("openvino", openvino)):
            try:
                if target == "onnx":
                    to_onnx(model, batches[0], onnx)
                else:
                    to_openvino(onnx, openvino)
                gap, size = difference(model, start(file), names, batches)
                found[target] = gap / max(1.0, size)
            except Exception as error:  # the page lists what cannot be exported
                found[target] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return found


def hub_cases(families: tuple[str, ...]) -> Iterator[tuple[str, str, PreTrainedModel]]:
    """Every family with every kind that its tests have."""
    for family, kind in zoo.CASES:
        if not families or family in families:
            padding = {"vocab_size": 410, "pad_token_id": len(load_decoder_tokenizer())}  # the tokenizer adds the token
            model = zoo.build(family, kind, **(padding if family in BYTE_LEVEL else {}))
            to_canonical(model)
            prune_unevenly(model)
            yield family, kind, model


def hub_tokenizer(family: str) -> Any:
    """A tokenizer of made-up words, or of bytes."""
    return load_decoder_tokenizer() if family in BYTE_LEVEL else word_tokenizer(words=60)


def hub_differences(model: PreTrainedModel) -> dict[str, float | str]:
    """The largest difference of each graph of a folder in the hub layout, or why there is none."""
    tokenizer = hub_tokenizer(model.config.model_type)
    with TemporaryDirectory() as folder:
        source, served = Path(folder) / "source", Path(folder) / "served"
        model.config.quantization_config = describe(model, [])
        model.save_pretrained(source)
        tokenizer.save_pretrained(source)
        try:
            exported = export(source, served, layout="hub", texts=TEXTS)
            loaded = Source(served).load()
            batch = dict(tokenizer(TEXTS[0], return_tensors="pt"))
            same = torch.allclose(run(model, batch)[0], run(loaded, batch)[0], atol=1e-5)
            broken = broken_rules(served)
        except KpruneError as error:
            return {"refused": str(error)}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    found: dict[str, float | str] = {
        f"{graph.target} int8" if graph.int8 else graph.target: graph.difference
        for graph in exported.graphs
        if graph.difference is not None
    }
    if broken:
        return {"error": f"Text Embeddings Inference cannot read the folder: {broken[0]}"}
    return found if same else {"error": "the folder's weights give other outputs"}


def run_hub(out: Path, lines: list[dict[str, Any]], families: tuple[str, ...]) -> None:
    """Export all cases that are not in the file yet, print a line for each, and fail if one fails."""
    known = {(line["family"], line["kind"]) for line in lines}
    for family, kind, model in hub_cases(families):
        if (family, kind) not in known:
            line = {"family": family, "kind": kind, **hub_differences(model), **provenance()}
            lines.append(line)
            click.echo(f"{family}, {kind}: " + str({name: line[name] for name in RESULTS if name in line}))
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    failed = [line for line in lines if "error" in line or "differs from torch" in line.get("refused", "")]
    if failed:
        raise click.ClickException(f"{len(failed)} folders fail, first {failed[0]}")


@click.command()
@click.option("--layout", type=click.Choice(["plain", "hub"]), default="plain", show_default=True)
@click.option("--family", "families", multiple=True, help="Only these families, with --layout hub.  [default: all]")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(layout: str, families: tuple[str, ...], out: Path) -> None:
    """Compare all cases, print one line per case, and fail if a difference exceeds the limit."""
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    if layout == "hub":
        run_hub(out, lines, families)
        return
    known = {(line["family"], line["kind"]) for line in lines}
    for family, kind, model, batches in chain(random_cases(), sentence_cases()):
        if (family, kind) in known:
            continue
        units = [sublayer.units for sublayer in find(model)]
        line = {"family": family, "kind": kind, "units": units, **differences(model, batches), **provenance()}
        lines.append(line)
        click.echo(f"{family}, {kind}: {line['onnx']}, {line.get('openvino')}")
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")
    over = [line for line in lines for name in ("onnx", "openvino") if not is_close(line.get(name))]
    if over:
        raise click.ClickException(f"{len(over)} graphs fail or differ by more than {LIMIT:g}, first {over[0]}")


def is_close(gap: float | str | None) -> bool:
    return isinstance(gap, float) and gap <= LIMIT


if __name__ == "__main__":
    main()
