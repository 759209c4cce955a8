"""The interface of a pruning method, which the loop of `kprune.pruning.pruner` calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedModel

from kprune.models.sublayer import Sublayer
from kprune.pruning.budgets import total_flops
from kprune.pruning.journal import Journal
from kprune.pruning.refit import Fit, keep_weights
from kprune.pruning.run import Run
from kprune.pruning.streams import Streams


@dataclass(frozen=True)
class Choice:
    """The units that stay in a sublayer, and how its tokens count in the refit."""

    keep: Tensor
    """Boolean mask over units."""
    token_weights: list[Tensor] | None = None


class Method(ABC):
    """A way to prune, created for one run. The loop calls `prepare`, `choose` and the `fit`, sublayer by sublayer."""

    name: ClassVar[str]
    wants_labels: ClassVar[bool] = False
    overrides: ClassVar[dict[str, Any]] = {}
    """Config fields that the method fixes."""
    settings: ClassVar[dict[str, Any]] = {}
    """Config fields that only some rivals have and this one takes, with their defaults; None elsewhere."""

    def __init__(self, run: Run, journal: Journal, tick: Callable[[], None]) -> None:
        self.run, self.config, self.journal, self.tick = run, run.config, journal, tick

    @property
    def is_measured(self) -> list[bool]:
        """For each sublayer, whether units are measured before it is pruned."""
        return [False] * len(self.run.sublayers)

    def target_model(self) -> tuple[PreTrainedModel, bool]:
        """The model whose streams the student is fitted to, and whether the student equals it at the start."""
        return self.run.shared.teacher, True

    def prepare(self, step: int, streams: Streams, *, is_recalled: bool) -> None:
        """Called before each sublayer; `is_recalled`: the journal has its outcome."""

    @abstractmethod
    def choose(self, step: int) -> Choice:
        """The units of a sublayer that stay."""

    @property
    def is_cross_validated(self) -> bool:
        """Whether `fit` needs the sums of the two halves of the sample."""
        return False

    @property
    def fit(self) -> Fit:
        """How the consumer is fitted."""
        return keep_weights

    def check(self, target: Sublayer, before: float, after: float) -> None:
        """Raise if the error after the fit is not plausible."""

    training_work: ClassVar[float] = 0.0
    """Work of `finish` for the progress bar; a refit of a sublayer has `kprune.pruning.progress.REFITTING`."""

    def finish(self, report: Callable[[float], None]) -> None:
        """Called after the last sublayer, for methods that retrain; `report` takes the share that is done."""

    def flops(self) -> float:
        """FLOPs of the finished student on one input of the sample's mean length."""
        return total_flops(self.run.sublayers, self.run.shared.sample.mean_length)

    @property
    def state(self) -> dict[str, Any]:
        """What a resumed run must know of the finished steps, as JSON."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue after a recalled step with its `state`."""
