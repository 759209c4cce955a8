"""What a run gives back, and what it tells of itself on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from time import perf_counter
from typing import Any

from transformers import PreTrainedModel

from kprune.settings import Settings
from kprune.sublayer import Sublayer


@dataclass(frozen=True)
class Step:
    """What happened to one sublayer."""

    layer: int
    kind: str
    units: int
    """How many there were."""
    kept: tuple[int, ...]
    """Numbers of those that stayed."""
    error_before: float
    """‖T − S‖² / ‖T‖² of the stream after this sublayer, its units removed, before the refit."""
    error_after: float
    """The same after the refit."""
    seconds: float

    @property
    def name(self) -> str:
        return f"layer {self.layer} {self.kind}"


@dataclass(frozen=True)
class Pruned:
    """A pruned model, and how it came to be."""

    model: PreTrainedModel
    steps: tuple[Step, ...]
    settings: Settings
    flops: tuple[float, float]
    """Encoder FLOPs on one input of the sample's mean length, before and after."""
    parameters: tuple[int, int]
    """Before and after, embeddings and head included."""
    examples: int
    tokens: int
    seconds: float

    @property
    def reduction(self) -> float:
        """The share of FLOPs that was removed in fact."""
        return 1.0 - self.flops[1] / self.flops[0]

    def summary(self) -> dict[str, Any]:
        """What a reader of the checkpoint wants to know of its making, as JSON."""
        return {
            "kprune": version("kprune"),
            **asdict(self.settings),
            "flops": list(self.flops),
            "parameters": list(self.parameters),
            "examples": self.examples,
            "tokens": self.tokens,
            "errors": [float(f"{step.error_after:.4g}") for step in self.steps],
        }


@dataclass(frozen=True)
class Progress:
    """Where a run is."""

    fraction: float
    """Of the whole run's work."""
    sublayer: str
    step: Step | None
    """The sublayer's outcome, at the moment it is done."""


class Clock:
    """Turns batches done into a fraction of the run: a target's measurement passes through all sublayers above it."""

    def __init__(self, is_measured: Sequence[bool], batches: int, progress: Callable[[Progress], None]) -> None:
        self._batches, self._progress = batches, progress
        self._measuring = [2.0 * (len(is_measured) - i) * is_measured[i] for i in range(len(is_measured))]
        self._refitting = 3.0
        self._work = sum(self._measuring) + self._refitting * len(is_measured)
        self._done = 0.0

    def start(self, number: int, target: Sublayer) -> None:
        self._began = perf_counter()
        self._number, self._name = number, target.name
        # Batches' parts of a sublayer may add up to a little more than the whole: what was told is not taken back.
        self._done = max(self._done, sum(self._measuring[:number]) + self._refitting * number)
        self._report(0.0)

    def measured(self) -> None:
        self._report(self._measuring[self._number] / self._batches)

    def refitted(self) -> None:
        self._report(self._refitting / self._batches)

    def lap(self) -> float:
        return perf_counter() - self._began

    def stop(self, step: Step) -> Step:
        self._report(0.0, step)
        return step

    def _report(self, work: float, step: Step | None = None) -> None:
        self._done += work
        self._progress(Progress(min(self._done / self._work, 1.0), self._name, step))
