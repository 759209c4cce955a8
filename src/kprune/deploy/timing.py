"""Times that can be compared: calls are interleaved, so that other load on the machine affects all of them alike."""

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
from kprune.models.families import find_row, max_positions

Name = TypeVar("Name", bound=Hashable)
WARMUP_SECONDS = 0.1
"""Seconds of untimed calls at the start of each turn, and of timed calls after them.

ONNX Runtime's threads wait actively for about 50 ms after a call, and would slow down the next model.
"""
MAX_CALLS_PER_TURN = 10


@dataclass(frozen=True)
class Times:
    """Seconds of one call, by round; a round may have several calls."""

    rounds: tuple[tuple[float, ...], ...]

    @property
    def all(self) -> list[float]:
        """Seconds of all calls, ascending."""
        return sorted(chain.from_iterable(self.rounds))

    @property
    def p50(self) -> float:
        return median(self.all)

    @property
    def p95(self) -> float:
        ordered = self.all
        return ordered[ceil(0.95 * len(ordered)) - 1]

    def ratio(self, other: Times, *, without: float = 0.0) -> float:
        """This time over the other's: the median of the ratios of the rounds.

        `without`: seconds that both share and that are subtracted first.
        """
        pairs = zip(self.rounds, other.rounds, strict=True)
        return median((median(ours) - without) / (median(theirs) - without) for ours, theirs in pairs)


def time_interleaved(
    calls: Mapping[Name, Callable[[], object]],
    *,
    seconds: float = 4.0,
    min_rounds: int = 5,
    max_rounds: int = 100,
) -> dict[Name, Times]:
    """Times of each call: a warm-up round, then timed rounds until `seconds` per call have passed.

    A turn starts with untimed calls. They refill the caches and outlast the idle threads of the previous model, as in
    a server that runs one model. Short calls are timed several times per turn. Each round starts with another call.
    """
    names = list(calls)
    for name in names:
        _time_turn(calls[name])
    rounds: dict[Name, list[tuple[float, ...]]] = {name: [] for name in names}
    start = perf_counter()
    for number in range(max_rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            rounds[name].append(_time_turn(calls[name]))
        if number + 1 >= min_rounds and perf_counter() - start > seconds * len(names):
            break
    return {name: Times(tuple(taken)) for name, taken in rounds.items()}


def _time_turn(call: Callable[[], object]) -> tuple[float, ...]:
    last = warmed_up = _time_call(call)
    while warmed_up < WARMUP_SECONDS:
        last = _time_call(call)
        warmed_up += last
    count = max(1, min(MAX_CALLS_PER_TURN, int(WARMUP_SECONDS / last)))
    return tuple(_time_call(call) for _ in range(count))


def _time_call(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return perf_counter() - start


def bind_inputs(run: Callable[[Mapping[str, Tensor]], object], inputs: Mapping[str, Tensor]) -> Callable[[], object]:
    """A call of a model on fixed inputs."""
    return lambda: run(inputs)


def random_inputs(config: PreTrainedConfig, batch: int, length: int, device: torch.device) -> dict[str, Tensor]:
    """Inputs of one shape without padding; the choice of tokens does not affect the time."""
    row = find_row(config)
    text = "input_ids" if hasattr(config, "vocab_size") else "no text"
    name = text if row is None else row.inputs  # an exported graph need not have a row
    if name != "input_ids":
        raise KpruneError(
            f"a {config.model_type!r} model reads {name}, and times are of texts of {batch} × {length} tokens; "
            "time it in your own code."
        )
    limit = max_positions(config)
    if length > limit:
        raise KpruneError(
            f"inputs of {batch} × {length} tokens are too long for the model; it reads at most {limit}: "
            "use a shorter length."
        )
    generator = torch.Generator().manual_seed(0)
    # The lowest numbers are special tokens, and some models treat the pad token as padding.
    tokens = torch.randint(min(5, config.vocab_size - 1), config.vocab_size, (batch, length), generator=generator)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if getattr(config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = torch.zeros_like(tokens)
    return {name: value.to(device) for name, value in inputs.items()}
