"""Limits on what a run keeps in memory, and when freed memory returns to the system."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from kprune.config import PruneConfig
from kprune.models.passes import replayed
from kprune.models.sublayer import Sublayer
from kprune.runtime.memory import trim_heap

ACTIVATION_BYTES = 144 * 2**20
"""Activations that one pass may keep for its backward pass; this sets the batch size."""
ACTIVATION_BYTES_ONCE = 208 * 2**20
"""The same if units are measured once, at the start: teacher and student then share one stream."""
ACTIVATION_SHARE = 0.25
"""Share of the weights' size that activations may take if that is more: tiny batches would be slow."""
FEATURE_BYTES = 56 * 2**20
"""Features of the last refit that are kept for the next pass; fewer than a measurement's activations."""
FEATURE_BYTES_OF_SWEEPS = 512 * 2**20
"""The same in runs that share the teacher's streams: those have memory or disk for them, and are repeated."""
TRIM_EVERY = 8
"""Batches between two returns of free memory, in passes that leave small tensors scattered over the heap."""


def activation_bytes(config: PruneConfig, parameters: int) -> int:
    """Bytes of activations per pass, for a model with this number of float32 parameters."""
    is_measured_once = not (config.refit and config.refresh)
    limit = ACTIVATION_BYTES_ONCE if is_measured_once else ACTIVATION_BYTES
    return max(limit, int(ACTIVATION_SHARE * 4 * parameters))


def trim_after_batch(number: int, *, leaves_tensors: bool) -> None:
    """Return free memory after every few batches of a pass that leaves small tensors between freed ones."""
    if leaves_tensors and (number + 1) % TRIM_EVERY == 0:
        trim_heap()


class FeatureCache:
    """Features that the last refit read, for some batches: the pass that advances the stream does not make them again.

    A cached pass gives the same bits as one that computes the features.
    """

    def __init__(self, *, has_room: bool = False) -> None:
        self._cached: dict[int, tuple[Sublayer, Tensor]] = {}
        self._has_room, self._room = has_room, 0

    def restart(self) -> None:
        """Forget everything, before the features of another sublayer are added."""
        self._cached.clear()
        self._room = FEATURE_BYTES_OF_SWEEPS if self._has_room else FEATURE_BYTES

    def add(self, number: int, sublayer: Sublayer, consumer_input: Tensor) -> None:
        """Keep a batch's features if there is room."""
        self._room -= consumer_input.nbytes
        if sublayer.units and self._room >= 0:
            self._cached[number] = sublayer, consumer_input

    def replay(self, number: int) -> AbstractContextManager[None]:
        """Within the context, a pass of the student reads the cached features of a batch, if there are any."""
        cached = self._cached.pop(number, None)
        return replayed(*cached) if cached else nullcontext()

    def trim(self) -> None:
        """Return the memory of features that were too large to keep; for a little memory it does not pay."""
        if self._room < -FEATURE_BYTES:
            trim_heap()
