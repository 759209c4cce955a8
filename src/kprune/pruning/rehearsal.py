"""A rehearsal of a run: its real parts on a few batches, timed; nothing is pruned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from kprune.config import PruneConfig
from kprune.errors import BadOptions
from kprune.models.batches import Batch, Sample
from kprune.models.sublayer import Sublayer
from kprune.pruning.budgets import budget_named
from kprune.pruning.criteria import Accumulation
from kprune.pruning.forecast import Extent, Rehearsal
from kprune.pruning.journal import Journal
from kprune.pruning.knowledge_pruning import KPrune
from kprune.pruning.measurement import Start, backpropagate
from kprune.pruning.memory_policy import trim_after_batch
from kprune.pruning.pruner import Pruner
from kprune.pruning.refit import least_squares_fit
from kprune.pruning.run import Run, Shared, group_sizes
from kprune.pruning.streams import Streams
from kprune.pruning.teacher import TeacherPredictions
from kprune.runtime.computation_mode import ordinary_mode
from kprune.runtime.memory import peak_megabytes, reset_peak

TIMED_BATCHES = 2
"""Batches that are timed, after one that warms up."""
RIDGE = 1e-2
"""The least ridge of a rehearsed refit that is not cross-validated: few tokens do not determine its weights."""


@ordinary_mode()
def rehearse(pruner: Pruner) -> tuple[Rehearsal, Extent]:
    """Seconds and peaks of the parts of a run on a few of its batches, and the size of the whole run."""
    config = pruner.config
    if config.method != KPrune.name:
        raise BadOptions(f"a dry run rehearses the method {KPrune.name!r}, not {config.method!r}; leave --method out.")
    sample = pruner.shared.sample
    few = replace(sample, batches=_choose(sample.batches))
    loading = peak_megabytes()
    method, streams, embedding = _start(pruner, few, config)
    with _peak() as measuring_peak:
        measuring, scoring = _measure(method, streams, few)
    with _peak() as refitting_peak:
        refitting, solving = _refit(method, streams, few, config)
    timed = few.batches[1:] or few.batches
    held = sum(batch.mask.numel() for batch in few.batches)
    rehearsal = Rehearsal(
        tokens=sum(batch.mask.numel() for batch in timed),
        held_tokens=held,
        embedding=embedding * sum(batch.mask.numel() for batch in timed) / held,
        measuring=measuring,
        scoring=scoring,
        refitting=refitting,
        solving=solving,
        loading_bytes=2**20 * loading,
        measuring_bytes=2**20 * measuring_peak[0],
        refitting_bytes=2**20 * refitting_peak[0],
    )
    return rehearsal, _extent(pruner, method, config)


def _choose(batches: Sequence[Batch]) -> list[Batch]:
    """The largest batch, which warms up and has the peak of memory, then batches of all lengths, evenly spaced."""
    largest = max(batches, key=lambda batch: batch.mask.numel())
    ordered = sorted(batches, key=lambda batch: batch.mask.shape[1])
    count = min(TIMED_BATCHES, len(ordered))
    return [largest, *(ordered[(2 * place + 1) * len(ordered) // (2 * count)] for place in range(count))]


def _start(pruner: Pruner, few: Sample, config: PruneConfig) -> tuple[KPrune, Streams, float]:
    """The method and the streams of the rehearsal, and the seconds of embedding."""
    shared, offload = pruner.shared, pruner.run_config.offload
    predictions = TeacherPredictions(shared.teacher, shared.predictions.kind, few)
    run = Run(Shared(shared.teacher, few, predictions), config, budget_named(config.budget))
    began = perf_counter()
    streams = Streams(shared.teacher, run.student, few, offload=offload)
    return KPrune(run, Journal(), lambda: None), streams, _seconds_since(began)


def _measure(method: KPrune, streams: Streams, few: Sample) -> tuple[float, float]:
    """Seconds of a measurement's passes over the timed batches, and of the scores of all sublayers."""
    run, criterion, predictions = method.run, method.criterion, method.run.shared.predictions
    if not any(method.is_measured):
        return 0.0, 0.0
    sums = criterion.start(run.sublayers, few, predictions.kind, method.config)
    seconds = []
    for number in range(len(few.batches)):
        began = perf_counter()
        with torch.enable_grad(), predictions.saving(run.sublayers), sums.collect(number):
            lowest = run.sublayers[0]
            start = Start(lowest.index, streams.student[number], lowest.kind == "ffn")
            backpropagate(run.student, number, start, predictions, criterion, method.config, is_teacher=True)
        trim_after_batch(number, leaves_tensors=criterion.leaves_tensors)
        seconds.append(_seconds_since(began))
    return sum(seconds[1:] or seconds), _scoring_seconds(sums, run.sublayers)


def _scoring_seconds(sums: Accumulation, sublayers: Sequence[Sublayer]) -> float:
    """Seconds of the scores of all sublayers, from one of each shape."""
    total = 0.0
    shapes: dict[tuple[int, int], list[Sublayer]] = {}
    for sublayer in sublayers:
        shapes.setdefault((sublayer.features, sublayer.units), []).append(sublayer)
    for _, alike in sorted(shapes.items(), reverse=True):  # the widest needs the most memory
        began = perf_counter()
        sums.knowledge(alike[-1])
        total += len(alike) * _seconds_since(began)
    return total


@torch.no_grad()
def _refit(method: KPrune, streams: Streams, few: Sample, config: PruneConfig) -> tuple[float, float]:
    """Seconds of the refits' passes over the timed batches, and of their solutions, for all layers, from the lowest."""
    run = method.run
    layers = len({sublayer.index for sublayer in run.sublayers})
    lowest = [sublayer for sublayer in run.sublayers if sublayer.index == run.sublayers[0].index]
    has_ridge = config.refit and config.ridge is not None
    fit = least_squares_fit(max(config.ridge or 0.0, RIDGE)) if has_ridge else method.fit
    weights = [torch.ones(int(batch.mask.sum()), device=batch.mask.device) for batch in few.batches]
    began, solving = perf_counter(), 0.0
    for sublayer, size in zip(lowest, group_sizes(lowest, config), strict=True):
        streams.advance_to(sublayer)
        ticks = [perf_counter()]
        tick = partial(_note_time, ticks)
        streams.remove(
            sublayer, _share(sublayer, size, config), fit, tick, weights, in_halves=method.is_cross_validated
        )
        solving += _seconds_since(ticks[-1])
    others = [sublayer for sublayer in run.sublayers if sublayer.index > lowest[0].index]
    if others:
        streams.advance_to(others[0])
    timed = few.batches[1:] or few.batches
    share = sum(batch.mask.numel() for batch in timed) / sum(batch.mask.numel() for batch in few.batches)
    return layers * share * (_seconds_since(began) - solving), layers * solving


def _share(sublayer: Sublayer, size: int, config: PruneConfig) -> Tensor:
    """The mask of the first units, as many as the same share in every sublayer leaves."""
    kept = round((1.0 - config.reduction) * sublayer.units / size) * size
    keep = torch.zeros(sublayer.units, dtype=torch.bool)
    keep[: max(size, min(kept, sublayer.units - 1))] = True
    return keep


def _extent(pruner: Pruner, method: KPrune, config: PruneConfig) -> Extent:
    sublayers, sample = method.run.sublayers, pruner.shared.sample
    widest = max(sublayer.features for sublayer in sublayers)
    return Extent(
        tokens=sum(batch.mask.numel() for batch in sample.batches),
        width=sublayers[0].consumer.out_features,
        sublayers=len(sublayers),
        features=round((1.0 - config.reduction) * widest),
        is_measured=method.is_measured,
        keeps_streams=pruner.run_config.offload is None,
        keeps_top=pruner.shared.predictions.kind.is_vocabulary,
    )


def _note_time(times: list[float]) -> None:
    times.append(perf_counter())


@contextmanager
def _peak() -> Iterator[list[float]]:
    """Yield a list that has the peak of the block in megabytes, once the block is done."""
    reset_peak()
    found: list[float] = []
    yield found
    found.append(peak_megabytes())


def _seconds_since(began: float) -> float:
    """Seconds since a moment, after everything that a GPU still computes."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return perf_counter() - began
