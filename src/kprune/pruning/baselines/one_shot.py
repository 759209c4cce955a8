"""What the rivals have in common: all units are chosen before any is removed."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from kprune.maths.selection import select_groups
from kprune.pruning.method import Choice, Method
from kprune.runtime.distributed import broadcast


class OneShot(Method):
    """A method that chooses all units on the dense model. K-prune's own settings are off."""

    overrides: ClassVar[dict[str, Any]] = {
        "criterion": None,
        "rep_weight": 0.0,
        "head_weight": 1.0,
        "refit": False,
        "bias": False,
        "align": 1,
        "refresh": 0,
    }

    @abstractmethod
    def masks(self) -> list[Tensor]:
        """Boolean masks of the units that stay, one per sublayer."""

    def prepare(self, step: int, streams: Any, *, is_recalled: bool) -> None:
        if step == 0:
            self._masks  # noqa: B018  # chosen while the student is dense, also in a resumed run

    def choose(self, step: int) -> Choice:
        return Choice(broadcast(self._masks[step]))

    @cached_property
    def _masks(self) -> list[Tensor]:
        return self.masks()


def select_single_units(scores: list[Tensor], prices: list[Tensor], budget: float) -> list[Tensor]:
    """Masks of the units that stay, by scores over all sublayers, without groups."""
    return select_groups(scores, prices, [1] * len(scores), budget)
