"""The result of healing."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from transformers import PreTrainedModel

from kprune.config import HealConfig
from kprune.pruning.result import Pruned, describe_healing


@dataclass(frozen=True, repr=False)
class Healed:
    """A healed model, and how it was made."""

    model: PreTrainedModel
    """The best state; weights equal to those of the given model if no state was better."""
    pruned: Pruned | None
    """The pruning with the healed model, for `kprune.save`; None if a bare model was given."""
    config: HealConfig
    loss: tuple[float, float]
    """Held-out loss before and after: KL divergence per example, or squared error of outputs that are values."""
    steps: int
    best_step: int
    """The step after which the held-out loss was least; 0: none was better."""
    passes: float
    examples: int
    tokens: int
    """Real tokens that were trained on, each counted once."""
    held_out_examples: int
    is_interrupted: bool
    seconds: float

    def __repr__(self) -> str:
        return f"Healed({type(self.model).__name__}, {self.describe()})"

    @property
    def is_better(self) -> bool:
        """Whether training found a state that is better than the given model."""
        return self.best_step > 0

    def summary(self) -> dict[str, Any]:
        """Settings and losses as JSON, for the record in config.json."""
        return {
            "kprune": version("kprune"),
            **self.config.as_json(),
            "loss": [float(f"{loss:.6g}") for loss in self.loss],
            "steps": self.steps,
            "best_step": self.best_step,
            "passes": round(self.passes, 3),
            "examples": self.examples,
            "tokens": self.tokens,
            "held_out_examples": self.held_out_examples,
            "is_interrupted": self.is_interrupted,
        }

    def describe(self) -> str:
        """One sentence, for the model card and the terminal."""
        return describe_healing(self.summary())
