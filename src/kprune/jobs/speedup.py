"""Prune to a measured speed-up: the budget is milliseconds on the user's batch, length, runtime and threads."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kprune.deploy.latency import Latency, measure_latency, measured_speedup, reduction_for_speedup
from kprune.jobs.preparation import float32_copy
from kprune.jobs.prune_checkpoint import State
from kprune.pruning.progress import Progress
from kprune.runtime.devices import count_threads


@dataclass(frozen=True)
class PruneToSpeedup:
    """A first stage of `prune_checkpoint` that makes the model `speedup` times as fast."""

    speedup: float
    shape: tuple[int, int]
    runtime: str = "torch"
    threads: int | None = None
    cache: Path | None = None

    def __call__(self, state: State) -> State:
        dense = float32_copy(state.prepared.model)
        latency = self._latency(state)
        latency.reduction(self.speedup)  # raises if the speed-up is out of reach
        config = replace(state.config, budget=latency.budget)
        pruner = state.prepared.pruner(config, state.run)
        reduction = reduction_for_speedup(pruner, latency, self.speedup)
        with state.show_progress() as advance:
            pruned = pruner.prune(reduction, progress=advance)
        reached = measured_speedup(float32_copy(pruned.model), dense, latency)
        note = (
            f"{reached:.2f} × as fast as before ({self.speedup:g} × requested): batch {latency.batch} × "
            f"{latency.length} tokens, {latency.runtime}, {latency.dtype}, {count_threads(latency.threads)}."
        )
        details = {"speedup": {"asked": self.speedup, "measured": reached, "latency": asdict(latency)}}
        return replace(state, pruned=pruned, notes=(*state.notes, note), details={**state.details, **details})

    def _latency(self, state: State) -> Latency:
        batch, length = self.shape
        with state.show_progress() as advance:
            advance(Progress(0.0, "timing heads and neurons", None))
            return measure_latency(
                float32_copy(state.prepared.model),
                batch=batch,
                length=length,
                runtime=self.runtime,
                threads=self.threads,
                cache=self.cache,
            )
