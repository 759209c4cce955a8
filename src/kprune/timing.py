"""Times that can be compared: calls take turns, so that what a machine does beside hits all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import ceil
from statistics import median
from time import perf_counter
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from kprune.errors import KpruneError
from kprune.families import positions_of

Name = TypeVar("Name", bound=Hashable)
WARMING = 0.1
"""Seconds for which a call is made untimed at each of its turns, at least once; and timed, ten times at the most.

ONNX Runtime's threads wait busily for some 50 ms after a call, and would slow down another's.
"""


@dataclass(frozen=True)
class Times:
    """Seconds of one call, of which there may be several in each round."""

    rounds: tuple[tuple[float, ...], ...]

    @property
    def all(self) -> list[float]:
        return sorted(chain.from_iterable(self.rounds))

    @property
    def p50(self) -> float:
        return median(self.all)

    @property
    def p95(self) -> float:
        ordered = self.all
        return ordered[ceil(0.95 * len(ordered)) - 1]

    def ratio(self, other: Times, *, without: float = 0.0) -> float:
        """How many times as long this took as the other: the median over rounds, each by its own ratio.

        `without`: seconds that both have in common, and that are not to count.
        """
        pairs = zip(self.rounds, other.rounds, strict=True)
        return median((median(ours) - without) / (median(theirs) - without) for ours, theirs in pairs)


def take_turns(
    calls: Mapping[Name, Callable[[], object]],
    *,
    seconds: float = 4.0,
    least: int = 5,
    most: int = 100,
) -> dict[Name, Times]:
    """Seconds of each call: a round to warm up, then `least` to `most` of them until `seconds` per call have passed.

    A turn begins with calls that are not timed: they bring back what others drove out of the caches, and outlast the
    others' idle threads, as in a server that runs one model only. Short calls are timed several times in a turn. Each
    round starts with another call.
    """
    names = list(calls)
    for name in names:
        _turn(calls[name])
    taken: dict[Name, list[tuple[float, ...]]] = {name: [] for name in names}
    began = perf_counter()
    for number in range(most):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            taken[name].append(_turn(calls[name]))
        if number + 1 >= least and perf_counter() - began > seconds * len(names):
            break
    return {name: Times(tuple(rounds)) for name, rounds in taken.items()}


def _turn(call: Callable[[], object]) -> tuple[float, ...]:
    last = warmed = _seconds(call)
    while warmed < WARMING:
        last = _seconds(call)
        warmed += last
    return tuple(_seconds(call) for _ in range(max(1, min(10, int(WARMING / last)))))


def _seconds(call: Callable[[], object]) -> float:
    began = perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return perf_counter() - began


def bound(run: Callable[[Mapping[str, Tensor]], object], inputs: Mapping[str, Tensor]) -> Callable[[], object]:
    """A call of a model on given inputs."""
    return lambda: run(inputs)


def random_inputs(config: PreTrainedConfig, batch: int, length: int, device: torch.device) -> dict[str, Tensor]:
    """What a model reads, of one shape and without padding; which tokens they are does not change the time."""
    if length > positions_of(config):
        raise KpruneError(
            f"inputs of {batch} × {length} tokens are too long for the model; it reads at most {positions_of(config)}."
        )
    generator = torch.Generator().manual_seed(0)
    # The lowest numbers are special tokens, and the pad token would count as padding to some models.
    tokens = torch.randint(min(5, config.vocab_size - 1), config.vocab_size, (batch, length), generator=generator)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if getattr(config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = torch.zeros_like(tokens)
    return {name: value.to(device) for name, value in inputs.items()}
