"""How long healing takes: which batch is next, the learning rate, and when the held-out text judges."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from kprune.config import HealConfig

WARM_UP = 0.05
"""Share of the budget in which the learning rate rises."""
PASSES_PER_PART = 4
"""Passes in a row over one part of the text: new text costs a pass of the dense model, and that as much as two of the
pruned one."""
LEAST_JUDGEMENTS = 8
"""Times that the held-out text judges, at least."""

RATE = 2e-4
"""The largest learning rate: few outputs per step make the gradient noisy."""
RATE_OF_EMBEDDINGS = 1e-3
"""The same for embeddings and encoder states, which have hundreds of values per text or token."""

Place = tuple[int, int]
"""The number of a part of the text, and of a batch in it."""


def with_rate(config: HealConfig, *, is_embedding: bool) -> HealConfig:
    """The configuration with the usual learning rate, unless it names one."""
    usual = RATE_OF_EMBEDDINGS if is_embedding else RATE
    return replace(config, heal_rate=usual) if config.heal_rate is None else config


@dataclass(frozen=True)
class Schedule:
    """The steps of a run: some passes over each part of the text, one part after the other, each in a random order."""

    config: HealConfig
    sizes: Sequence[int]
    """Batches of each part of the text."""

    @property
    def steps(self) -> int | None:
        """Steps of a budget of passes; None for minutes."""
        if self.config.passes is None:
            return None
        whole, rest = divmod(self.config.passes, 1)
        sizes = [self.sizes[self._part_of(number)] for number in range(int(whole) + 1)]
        return sum(sizes[:-1]) + math.ceil(rest * sizes[-1])

    @property
    def judgements(self) -> int:
        """How often the held-out text judges: twice a pass, or in equal times."""
        return max(LEAST_JUDGEMENTS, math.ceil(2 * (self.config.passes or 0)))

    def fraction(self, step: int, seconds: float) -> float:
        """Share of the budget that is spent after so many steps, or seconds."""
        if self.steps is not None:
            return step / self.steps if self.steps else 1.0
        return seconds / self.config.seconds if self.config.seconds else 1.0

    def is_judged(self, before: float, after: float) -> bool:
        """Whether the held-out text judges when the spent share grows from `before` to `after`."""
        return after >= 1.0 or math.floor(after * self.judgements) > math.floor(before * self.judgements)

    def rate(self, fraction: float) -> float:
        """The learning rate at a share of the budget: a warm-up, then half a cosine down to zero."""
        assert self.config.heal_rate is not None
        if fraction < WARM_UP:
            return self.config.heal_rate * (fraction / WARM_UP)
        return self.config.heal_rate * 0.5 * (1.0 + math.cos(math.pi * (fraction - WARM_UP) / (1.0 - WARM_UP)))

    def places(self, first: int) -> Iterator[Place]:
        """The batch of every step from step `first` on, without end."""
        step, number = 0, 0
        while True:
            part = self._part_of(number)
            if step + self.sizes[part] > first:
                yield from ((part, batch) for batch in self._order(number, part)[max(first - step, 0) :])
            step += self.sizes[part]
            number += 1

    def parts_before(self, step: int) -> list[int]:
        """The parts of the text that the first steps read, at least in part."""
        done, number, parts = 0, 0, set()
        while done < step:
            parts.add(self._part_of(number))
            done += self.sizes[self._part_of(number)]
            number += 1
        return sorted(parts)

    def _part_of(self, number: int) -> int:
        """The part of the text that a pass reads."""
        return number // PASSES_PER_PART % len(self.sizes)

    def _order(self, number: int, part: int) -> list[int]:
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + number)
        order: list[int] = torch.randperm(self.sizes[part], generator=generator).tolist()
        return order
