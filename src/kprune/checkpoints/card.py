"""The model card: how a model was pruned, and how to load it."""

from __future__ import annotations

import re
from typing import Any, Protocol

from huggingface_hub import ModelCard, ModelCardData

from kprune.data.items import MEDIA
from kprune.models.families import family_of
from kprune.models.native import history_of
from kprune.models.outputs import CAUSAL_LM, kind_of
from kprune.models.pruned_shape import record_of
from kprune.pruning.result import Pruned, describe_healing

GENERATION = """from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{0}")
model = AutoModelForCausalLM.from_pretrained("{0}")
inputs = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=40)[0]))"""
"""How a causal language model is loaded from a folder, and writes."""


SELF_CONTAINED = (
    "Without kprune, the modeling file of this folder loads it: pass `trust_remote_code=True` to the Auto class of the "
    "model, or to the class of sentence-transformers. transformers' warning about the quantization type is harmless "
    "then."
)
NOT_HEALED = "Nothing was retrained."
LOSSES, HEALING = "## What was lost", "## Healing"
"""Headings of an evaluation and of a healing."""


class HasCardSection(Protocol):
    """A result, such as an evaluation, that has a section in the card."""

    def card_section(self) -> str: ...


def model_card(
    pruned: Pruned,
    *,
    source: str,
    folder: str,
    sentence_class: str | None = None,
    base_model: str | None = None,
    evaluation: HasCardSection | None = None,
    note: str = "",
    is_self_contained: bool = False,
) -> str:
    """Markdown for a checkpoint's README; `note` is a sentence for its first paragraph.

    `sentence_class` is the class of sentence-transformers that loads the folder, `base_model` the hub name of the model
    that was pruned.
    """
    sections = [
        f"# {source}, pruned",
        _summary_section(pruned, source, note),
        _loading_section(pruned, folder, sentence_class, is_self_contained=is_self_contained),
        evaluation.card_section().strip() if evaluation else "",
        _settings_section(pruned),
        _history_section(pruned),
    ]
    body = "\n\n".join(section for section in sections if section) + "\n"
    library = "sentence-transformers" if sentence_class else "transformers"
    fields = {} if base_model is None else {"base_model": base_model}
    return with_front_matter(body, library_name=library, tags=["kprune", "pruned"], **fields)


def healed_card(card: str, sentence: str, evaluation: HasCardSection | None) -> str:
    """The card of a pruned model after it was healed: a section more, and no scores of the model before."""
    front, parts = "", card
    if card.startswith("---\n"):
        front, _, parts = card.removeprefix("---\n").partition("\n---\n")
    sections = re.split(r"^(?=## )", parts.replace(f"{NOT_HEALED} ", ""), flags=re.MULTILINE)
    kept = [section.strip() for section in sections if not section.startswith((LOSSES, HEALING))]
    added = [f"{HEALING}\n\n{sentence}", *([evaluation.card_section().strip()] if evaluation else [])]
    body = "\n\n".join([*kept, *added]) + "\n"
    return f"---\n{front}\n---\n\n{body}" if front else body


def with_front_matter(body: str, **fields: Any) -> str:
    """A card of Markdown `body` below the hub's YAML `fields`."""
    return str(ModelCard(f"---\n{ModelCardData(**fields).to_yaml()}\n---\n\n{body}"))


def _summary_section(pruned: Pruned, source: str, note: str) -> str:
    (before, after), medium = pruned.parameters, _medium(pruned)
    part = "decoder" if family_of(pruned.model.config).has_cache else "encoder"
    native = "" if pruned.native is None else f" {pruned.native.describe()}"
    healing = NOT_HEALED if pruned.healed is None else describe_healing(pruned.healed)
    return f"""kprune removed {pruned.reduction:.1%} of the {part}'s FLOPs from `{source}`: whole attention heads and
feed-forward neurons. The remaining weights were refitted to that model on {pruned.tokens:,} tokens of {medium}.{native}
{healing} The model has {after:,} parameters; before, it had {before:,}. {note}""".strip()


def _medium(pruned: Pruned) -> str:
    medium = MEDIA.get(pruned.model.main_input_name)
    return "text" if medium is None else medium.name


def _loading_section(
    pruned: Pruned, folder: str, sentence_class: str | None, *, is_self_contained: bool = False
) -> str:
    name, processor = type(pruned.model).__name__, ""
    module, call = "transformers", f"{name}.from_pretrained"
    if sentence_class:
        module, name, call = "sentence_transformers", sentence_class, sentence_class
    elif _medium(pruned) != "text":
        loader = "AutoImageProcessor" if _medium(pruned) == "images" else "AutoFeatureExtractor"
        name, processor = ", ".join(sorted((loader, name))), f'\nprocessor = {loader}.from_pretrained("{folder}")'
    code = f'from {module} import {name}\n\nmodel = {call}("{folder}"){processor}'
    if not sentence_class and kind_of(pruned.model) is CAUSAL_LM:
        code = GENERATION.format(folder)
    if record_of(pruned.model.config) is None:
        return f"## Load\n\nThis is an ordinary model; kprune is not needed.\n\n```python\n{code}\n```"
    alone = f"\n\n{SELF_CONTAINED}" if is_self_contained else ""
    return f"""## Load

```python
import kprune
{code}
```

Install kprune from its repository. Without `import kprune`, transformers warns of an unknown quantization type, skips
the pruning record and stops with an error about sizes. Do not pass `ignore_mismatched_sizes=True` then: the pruned
layers would get random weights.{alone}"""


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


def _history_section(pruned: Pruned) -> str:
    """A table of all runs, if the model was pruned more than once."""
    history = history_of(pruned.model.config)
    if len(history) < 2:
        return ""
    rows = "\n".join(f"| {number} | {_history_row(entry)} |" for number, entry in enumerate(history, 1))
    return f"""## All prunings

The model was pruned {len(history)} times. Each run started from the result of the one before. The errors above are
those of the last run.

| run | method | FLOPs removed in the run | parameters before | parameters after | tokens of text | kprune |
|---|---|---|---|---|---|---|
{rows}"""


def _history_row(entry: dict[str, Any]) -> str:
    """One run, with a dash for each value that the record does not have: anyone may have edited it."""
    flops, parameters = _pair(entry.get("flops")), _pair(entry.get("parameters"))
    tokens = entry.get("tokens")
    cells = [
        str(entry.get("method", "kprune")),
        f"{1 - flops[1] / flops[0]:.1%}" if flops and flops[0] else "–",
        *([f"{count:,}" for count in parameters] if parameters else ["–", "–"]),
        f"{tokens:,}" if isinstance(tokens, int) else "–",
        str(entry.get("kprune", "–")),
    ]
    return " | ".join(" ".join(cell.replace("|", "").split())[:40] for cell in cells)


def _pair(values: object) -> tuple[float, float] | None:
    """Two numbers, or None."""
    if isinstance(values, list) and len(values) == 2 and all(isinstance(value, int | float) for value in values):
        return values[0], values[1]
    return None
