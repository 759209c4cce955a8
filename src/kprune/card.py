"""The model card: what was done to a model, and how to load it."""

from __future__ import annotations

from kprune.evaluate import Evaluation
from kprune.pruned import Pruned


def model_card(
    pruned: Pruned,
    *,
    source: str,
    folder: str,
    is_sentence_transformer: bool,
    evaluation: Evaluation | None = None,
    note: str = "",
) -> str:
    """Markdown for a checkpoint's README, with a sentence of one's own where wanted."""
    settings = pruned.settings
    before, after = pruned.parameters
    rows = "\n".join(
        f"| {step.layer} | {step.kind} | {len(step.kept)} of {step.units} | {step.error_after:.4f} |"
        for step in pruned.steps
    )
    return f"""---
library_name: {"sentence-transformers" if is_sentence_transformer else "transformers"}
tags:
- kprune
- pruned
---

# {source}, pruned

{pruned.reduction:.1%} of the encoder's FLOPs were removed from `{source}` with
kprune: whole attention heads and feed-forward neurons are gone, and the weights
that remain were refitted to the dense model on {pruned.tokens:,} tokens of text. Nothing was retrained. The model has
{after:,} parameters; before, it had {before:,}. {note}

## Load

{_loading(pruned, folder, is_sentence_transformer)}

Without `import kprune` (`pip install kprune`) loading stops with an error about sizes.

{_tested(evaluation) if evaluation else ""}## How it was made

Criterion `{settings.criterion}`, reduction {settings.reduction:g} of {settings.budget}, neurons by {settings.align},
temperature {settings.temperature:g},
representational weight {settings.rep_weight:g}, head weight {settings.head_weight:g}, ridge {settings.ridge:g}, seed
{settings.seed}; {pruned.examples:,} examples with a mean length of {pruned.tokens / pruned.examples:.1f} tokens, for
which FLOPs are counted.

The error is that of the residual stream after each sublayer, ‖dense − pruned‖² / ‖dense‖², on the sample.

| layer | sublayer | units kept | error |
|---|---|---|---|
{rows}
"""


def _tested(evaluation: Evaluation) -> str:
    rows = [
        f"| {ours.name} | {ours.value:.2f} ({ours.low:.2f} to {ours.high:.2f}) | {theirs.value:.2f} | "
        f"{gap.value:+.2f} ({gap.low:+.2f} to {gap.high:+.2f}) | {gap.p_value:.3f} |"
        for ours, theirs, gap in zip(evaluation.figures, evaluation.against, evaluation.differences, strict=True)
    ]
    alike = [f"{each.name} {each.value:.4g} ({each.low:.4g} to {each.high:.4g})" for each in evaluation.fidelity]
    lines = [
        "## What was lost",
        "",
        f"On {evaluation.examples:,} examples of {evaluation.test}, with 95 % intervals. Likeness of the outputs to",
        f"the dense model's: {'; '.join(alike)}.",
        "",
    ]
    if rows:
        lines += ["| metric | pruned | dense | difference | p |", "|---|---|---|---|---|", *rows, ""]
    return "\n".join(lines) + "\n"


def _loading(pruned: Pruned, folder: str, is_sentence_transformer: bool) -> str:
    if is_sentence_transformer:
        loader, module = "SentenceTransformer(", "sentence_transformers"
        name = "SentenceTransformer"
    else:
        name = type(pruned.model).__name__
        loader, module = f"{name}.from_pretrained(", "transformers"
    return f"""```python
import kprune
from {module} import {name}

model = {loader}"{folder}")
```"""


def export_card(
    source: str,
    *,
    folder: str,
    file: str,
    target: str,
    int8: bool,
    difference: float,
    texts: int,
    inputs: list[str],
    outputs: list[str],
) -> str:
    """Markdown for an exported folder's README, with all that it takes to run it; the graph lies in `folder` of it."""
    file, tokenizer = (f"{folder}/{name}" if folder else name for name in (file, "tokenizer.json"))
    kind = "int8 weights" if int8 else "float32"
    start = (
        f"""import onnxruntime

session = onnxruntime.InferenceSession("{file}")
run = lambda feed: session.run(None, feed)"""
        if target == "onnx"
        else f"""import openvino

compiled = openvino.Core().compile_model("{file}", "CPU")
run = lambda feed: [compiled(feed)[each] for each in compiled.outputs]"""
    )
    return f"""---
tags:
- kprune
- {target}
---

# {source}, for {"ONNX Runtime" if target == "onnx" else "OpenVINO"}

`{file}` holds the graph of `{source}` ({kind}), for any batch and length. On {texts} texts of mixed length its outputs
({", ".join(outputs)}) differ from torch's by at most {difference:.2g}.

```python
import numpy
from tokenizers import Tokenizer
{start}
tokenizer = Tokenizer.from_file("{tokenizer}")
tokenizer.enable_padding()
encoded = tokenizer.encode_batch(["A text.", "And another one, which is longer."])
fields = {{"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}}
feed = {{name: numpy.array([getattr(each, fields[name]) for each in encoded]) for name in {inputs}}}
print(run(feed)[0])
```
"""
