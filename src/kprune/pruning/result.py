"""The result of a run: the pruned model, and what happened to each sublayer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from kprune.config import PruneConfig
from kprune.pruning.native_shape import NativeShape
from kprune.runtime.notebook import html_details, html_table


@dataclass(frozen=True)
class Step:
    """What happened to one sublayer."""

    layer: int
    kind: str
    units: int
    """Number of units before."""
    kept: tuple[int, ...]
    """Numbers of the kept units."""
    error_before: float
    """‖T − S‖² / ‖T‖² of the stream after this sublayer, its units removed, before the refit."""
    error_after: float
    """The same after the refit."""
    seconds: float

    @property
    def name(self) -> str:
        return f"layer {self.layer} {self.kind}"


@dataclass(frozen=True)
class Outcome:
    """A finished sublayer, with all that a resumed run needs of it."""

    step: Step
    weight: Tensor
    """Weight of the refitted consumer."""
    bias: Tensor | None
    method_state: dict[str, Any] = field(default_factory=dict)
    """State of the method after this step, as JSON."""


@dataclass(frozen=True, repr=False)
class Pruned:
    """A pruned model, and how it was made."""

    model: PreTrainedModel
    steps: tuple[Step, ...]
    config: PruneConfig
    """All settings, with the defaults of the method and the criterion filled in."""
    flops: tuple[float, float]
    """Encoder FLOPs on one input of the sample's mean length, before and after."""
    parameters: tuple[int, int]
    """Before and after, embeddings and head included."""
    examples: int
    tokens: int
    seconds: float
    """Seconds of the pruning and of the healing."""
    native: NativeShape | None = None
    """What every layer of a native model keeps; None: layers differ, or nothing was removed."""
    healed: dict[str, Any] | None = None
    """How the model was healed (`Healed.summary`); None: it was not."""
    source: Any = None
    """The folder (`Source`) of the dense model if it was named: `kprune.save` copies its side files."""

    def __repr__(self) -> str:
        before, after = self.parameters
        layers = len({step.layer for step in self.steps})
        return (
            f"Pruned({type(self.model).__name__}, {layers} layers, {self.reduction:.1%} of FLOPs removed, "
            f"{after:,} of {before:,} parameters left)"
        )

    def _repr_html_(self) -> str:
        """A table for notebooks: sizes before and after, and the units kept per layer."""
        sizes = [
            ("encoder GFLOPs per input", *(f"{flops / 1e9:.3f}" for flops in self.flops)),
            ("million parameters", *(f"{count / 1e6:.2f}" for count in self.parameters)),
        ]
        ratios = [f"{after / before:.2f}" for before, after in (self.flops, self.parameters)]
        caption = f"{type(self.model).__name__}, {self.reduction:.1%} of FLOPs removed in {self.seconds:.0f} s"
        sample = f"Sample: {self.tokens:,} tokens in {self.examples:,} inputs."
        rows = [(*size, ratio) for size, ratio in zip(sizes, ratios, strict=True)]
        layers = [
            (step.name, f"{len(step.kept):,}", f"{step.units:,}", f"{step.error_after:.4f}") for step in self.steps
        ]
        return html_table(caption, ("", "before", "after", "ratio"), rows, [sample]) + html_details(
            "units kept per layer", html_table("", ("sublayer", "kept", "of", "error"), layers)
        )

    @property
    def settings(self) -> PruneConfig:
        """The name of `config` before version 0.2."""
        return self.config

    @property
    def reduction(self) -> float:
        """The share of FLOPs that was removed."""
        return 1.0 - self.flops[1] / self.flops[0]

    def summary(self) -> dict[str, Any]:
        """Settings and sizes as JSON, for the record in config.json."""
        return {
            "kprune": version("kprune"),
            **self.config.as_json(),
            "flops": list(self.flops),
            "parameters": list(self.parameters),
            "examples": self.examples,
            "tokens": self.tokens,
            "errors": [float(f"{step.error_after:.4g}") for step in self.steps],
            **({} if self.native is None else {"shape": self.native.as_json()}),
            **({} if self.healed is None else {"healed": [self.healed]}),
        }


def describe_healing(entry: Mapping[str, Any]) -> str:
    """One sentence about a healing in the record; anyone may have edited it, so that entries may be missing."""
    steps, tokens, loss = (entry.get(name) for name in ("steps", "tokens", "loss"))
    size = f"{tokens:,} tokens" if isinstance(tokens, int) else "text"
    if not entry.get("best_step"):
        return f"Healing ({steps} steps on {size}) found no better weights on held-out text; the pruned ones were kept."
    numbers = loss if isinstance(loss, list | tuple) and len(loss) == 2 else ("?", "?")
    before, after = (f"{each:.4g}" if isinstance(each, int | float) else "?" for each in numbers)
    end = " before it was interrupted" if entry.get("is_interrupted") else ""
    return (
        f"The model was then healed without labels in {steps} steps on {size}{end}: its loss against the dense model "
        f"on held-out text fell from {before} to {after}."
    )
