"""Largest difference between torch and ONNX or OpenVINO on 64 inputs, for every family and kind of output.

    python benchmarks/export.py --out benchmarks/results/export.json

The models are small and built from configs. They are pruned unevenly, with one emptied attention and one emptied
feed-forward sublayer. The inputs are padded real sentences of mixed length; only real tokens are compared.
"""

from __future__ import annotations

import json
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

from kprune.data.calibration import python_documentation
from kprune.deploy.exporter import difference
from kprune.deploy.graphs import output_names
from kprune.deploy.onnx import to_onnx
from kprune.deploy.openvino import to_openvino
from kprune.deploy.targets import start
from kprune.jobs.demo import embedded_model
from kprune.models.resize import shrink
from kprune.models.sublayer import find

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
    for number, sublayer in enumerate(find(model)):
        keep = torch.rand(sublayer.units) < 0.5
        keep[0] = True
        shrink(sublayer, keep & (number not in (0, 3)))
    return model


@click.command()
@click.option("--out", type=click.Path(path_type=Path))
def main(out: Path | None) -> None:
    """Compare all cases, print one line per case, and fail if a difference exceeds the limit."""
    tokenizer = embedded_model().load_tokenizer()
    texts = python_documentation()[:64]
    encoded = [
        tokenizer(texts[n : n + 8], padding=True, truncation=True, max_length=128, return_tensors="pt")
        for n in range(0, 64, 8)
    ]
    lines: list[dict[str, Any]] = []
    for family in FAMILIES:
        for kind in KINDS:
            model = small_model(family, kind, len(tokenizer))
            reads = ("input_ids", "attention_mask", "token_type_ids")[
                : 3 if getattr(model.config, "type_vocab_size", 0) > 1 else 2
            ]
            batches = [{name: batch[name] for name in reads} for batch in encoded]
            names = output_names(model, batches[0])
            with TemporaryDirectory() as folder:
                onnx, openvino = Path(folder) / "model.onnx", Path(folder) / "openvino_model.xml"
                to_onnx(model, batches[0], onnx)
                to_openvino(onnx, openvino)
                line = {
                    "family": family,
                    "kind": kind,
                    "units": [sublayer.units for sublayer in find(model)],
                    "onnx": difference(model, start(onnx), names, batches)[0],
                    "openvino": difference(model, start(openvino), names, batches)[0],
                }
            lines.append(line)
            click.echo(json.dumps(line))
    if out:
        out.write_text(json.dumps({"texts": 64, "cases": lines, **provenance()}, indent=1) + "\n")
    over = [line for line in lines if max(line["onnx"], line["openvino"]) > LIMIT]
    if over:
        raise click.ClickException(f"differences above {LIMIT:g}: {over}")


if __name__ == "__main__":
    main()
