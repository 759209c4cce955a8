"""The model card: what was done to a model, and how to load it."""

from __future__ import annotations

from kprune.prune import Pruned


def model_card(pruned: Pruned, *, source: str, folder: str, is_sentence_transformer: bool) -> str:
    """Markdown for a checkpoint's README."""
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
{after:,} parameters; before, it had {before:,}.

## Load

{_loading(pruned, folder, is_sentence_transformer)}

Without `import kprune` (`pip install kprune`) loading stops with an error about sizes.

## How it was made

Criterion `{settings.criterion}`, reduction {settings.reduction:g}, temperature {settings.temperature:g},
representational weight {settings.rep_weight:g}, head weight {settings.head_weight:g}, ridge {settings.ridge:g}, seed
{settings.seed}; {pruned.examples:,} examples with a mean length of {pruned.tokens / pruned.examples:.1f} tokens, for
which FLOPs are counted.

The error is that of the residual stream after each sublayer, ‖dense − pruned‖² / ‖dense‖², on the sample.

| layer | sublayer | units kept | error |
|---|---|---|---|
{rows}
"""


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
