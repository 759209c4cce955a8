"""Progress of a run, as a fraction of its work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from kprune.models.sublayer import Sublayer
from kprune.pruning.result import Step

MEASURING = 2.0
"""Work of a measurement per sublayer that it passes through."""
REFITTING = 3.0
"""Work of a refit, in the same unit."""


@dataclass(frozen=True)
class Progress:
    """Where a run is."""

    fraction: float
    """Share of the run's work that is done."""
    sublayer: str
    step: Step | None
    """The sublayer's outcome, when it is finished."""
    note: str = ""
    """What else a bar shows, such as a held-out loss."""


class Clock:
    """Turns finished batches into a fraction: a measurement passes through all sublayers from the target upward."""

    def __init__(
        self,
        is_measured: Sequence[bool],
        batches: int,
        progress: Callable[[Progress], None],
        *,
        training: float = 0.0,
    ) -> None:
        self._batches, self._progress, self._training = batches, progress, training
        self._measuring = [MEASURING * (len(is_measured) - i) * is_measured[i] for i in range(len(is_measured))]
        self._total = sum(self._measuring) + REFITTING * len(is_measured) + training
        self._done = 0.0

    def start(self, number: int, target: Sublayer) -> None:
        self._began = perf_counter()
        self._number, self._name = number, target.name
        # Rounding can make the sum over batches exceed a sublayer's work: the fraction never goes back.
        self._done = max(self._done, self._work_below(number))
        self._report(0.0)

    def batch_measured(self) -> None:
        self._report(self._measuring[self._number] / self._batches)

    def batch_refitted(self) -> None:
        self._report(REFITTING / self._batches)

    @property
    def seconds(self) -> float:
        """Seconds since the current sublayer was started."""
        return perf_counter() - self._began

    def finish(self, step: Step) -> None:
        # Recalled sublayers, and those below the first removal, are not refitted batch by batch.
        self._done = max(self._done, self._work_below(self._number + 1))
        self._report(0.0, step)

    def trained(self, share: float) -> None:
        """Report that a share of the training, which follows the last sublayer, is done."""
        self._name = "training"
        self._done = max(self._done, self._total - self._training * (1.0 - share))
        self._report(0.0)

    def _work_below(self, number: int) -> float:
        return sum(self._measuring[:number]) + REFITTING * number

    def _report(self, work: float, step: Step | None = None) -> None:
        self._done += work
        self._progress(Progress(min(self._done / self._total, 1.0), self._name, step))
