"""The model card: how a model was pruned, and how to load it."""

from __future__ import annotations

from typing import Any, Protocol

from huggingface_hub import ModelCard, ModelCardData

from kprune.pruning.result import Pruned


class HasCardSection(Protocol):
    """A result, such as an evaluation, that has a section in the card."""

    def card_section(self) -> str: ...


def model_card(
    pruned: Pruned,
    *,
    source: str,
    folder: str,
    is_sentence_transformer: bool,
    evaluation: HasCardSection | None = None,
    note: str = "",
) -> str:
    """Markdown for a checkpoint's README; `note` is a sentence for its first paragraph."""
    sections = [
        f"# {source}, pruned",
        _summary_section(pruned, source, note),
        _loading_section(pruned, folder, is_sentence_transformer),
        evaluation.card_section().strip() if evaluation else "",
        _settings_section(pruned),
    ]
    library = "sentence-transformers" if is_sentence_transformer else "transformers"
    body = "\n\n".join(section for section in sections if section) + "\n"
    return with_front_matter(body, library_name=library, tags=["kprune", "pruned"])


def with_front_matter(body: str, **fields: Any) -> str:
    """A card of Markdown `body` below the hub's YAML `fields`."""
    return str(ModelCard(f"---\n{ModelCardData(**fields).to_yaml()}\n---\n\n{body}"))


def _summary_section(pruned: Pruned, source: str, note: str) -> str:
    before, after = pruned.parameters
    return f"""kprune removed {pruned.reduction:.1%} of the encoder's FLOPs from `{source}`: whole attention heads and
feed-forward neurons. The remaining weights were refitted to the dense model on {pruned.tokens:,} tokens of text.
Nothing was retrained. The model has {after:,} parameters; the dense model had {before:,}. {note}""".strip()


def _loading_section(pruned: Pruned, folder: str, is_sentence_transformer: bool) -> str:
    if is_sentence_transformer:
        module, name, call = "sentence_transformers", "SentenceTransformer", "SentenceTransformer"
    else:
        name = type(pruned.model).__name__
        module, call = "transformers", f"{name}.from_pretrained"
    return f"""## Load

```python
import kprune
from {module} import {name}

model = {call}("{folder}")
```

Without `import kprune` (`pip install kprune`), loading stops with an error about sizes."""


def _settings_section(pruned: Pruned) -> str:
    rows = "\n".join(
        f"| {step.layer} | {step.kind} | {len(step.kept)} of {step.units} | {step.error_after:.4f} |"
        for step in pruned.steps
    )
    return f"""## How it was made

{pruned.config.describe()}

The sample had {pruned.examples:,} examples with a mean length of {pruned.tokens / pruned.examples:.1f} tokens.
FLOPs are counted for this length. The error is ‖dense − pruned‖² / ‖dense‖² of the residual stream after each
sublayer, on the sample.

| layer | sublayer | units kept | error |
|---|---|---|---|
{rows}"""
