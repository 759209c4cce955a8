"""The floor that any method must be above: units chosen by the size of their weights, or by chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from kprune.errors import KpruneError
from kprune.prune import Draft, Pruner
from kprune.pruned import Clock, Progress, Pruned, Step
from kprune.ranks import count
from kprune.search import search_groups
from kprune.streams import Fit, Streams, leave
from kprune.sublayer import Sublayer


def magnitude(pruner: Pruner, reduction: float, progress: Callable[[Progress], None]) -> Pruned:
    """The units with the largest weights per FLOP stay; nothing is refitted."""
    draft = begin(pruner, reduction, "magnitude")
    found = [norms(sublayer) / cost for sublayer, cost in zip(draft.sublayers, draft.costs, strict=True)]
    return remove_all(pruner, draft, one_by_one(found, draft.prices, draft.budget), progress)


def chance(pruner: Pruner, reduction: float, progress: Callable[[Progress], None]) -> Pruned:
    """Units drawn by seed stay; nothing is refitted."""
    draft = begin(pruner, reduction, "random")
    generator = torch.Generator().manual_seed(pruner.settings.seed)
    found = [torch.rand(sublayer.units, generator=generator, dtype=torch.float64) for sublayer in draft.sublayers]
    return remove_all(pruner, draft, one_by_one(found, draft.prices, draft.budget), progress)


def norms(sublayer: Sublayer) -> Tensor:
    """Squared size of every unit's weights, in all projections."""
    width = sublayer.width
    rows = [linear.weight.double().square().sum(1) for linear in sublayer.producers]
    columns = sublayer.consumer.weight.double().square().sum(0)
    return sum(rows, columns).view(-1, width).sum(1)


def one_by_one(found: list[Tensor], prices: list[Tensor], budget: float) -> list[Tensor]:
    """Masks of the units that stay, by scores over all sublayers; widths are as they come."""
    return search_groups(found, prices, [1] * len(found), budget)


def begin(pruner: Pruner, reduction: float, name: str) -> Draft:
    """A draft whose settings tell of the method; K-prune's own knobs are off."""
    if count() > 1:
        raise KpruneError(f"the method {name!r} runs in one process only; {count()} were started.")
    return pruner.draft(
        replace(
            pruner.settings, reduction=reduction, criterion=name, rep_weight=0.0, head_weight=1.0, refit=False, align=1
        )
    )


def remove_all(
    pruner: Pruner,
    draft: Draft,
    masks: list[Tensor],
    progress: Callable[[Progress], None],
    fit: Fit = leave,
    streams: Streams | None = None,
) -> Pruned:
    """The draft with all other units removed, sublayer by sublayer, each fitted in its turn."""
    streams = streams or Streams(pruner.teacher, draft.student, pruner.sample, offload=pruner.offload)
    clock = Clock([False] * len(draft.sublayers), len(pruner.sample.batches), progress)
    steps = []
    for i, (target, keep) in enumerate(zip(draft.sublayers, masks, strict=True)):
        clock.start(i, target)
        units = target.units
        streams.move_to(target)
        before, after = streams.remove(target, keep, fit, clock.refitted)
        kept = tuple(keep.nonzero().squeeze(1).tolist())
        steps.append(clock.stop(Step(target.index, target.kind, units, kept, before, after, clock.lap())))
    return pruner.finish(draft, steps)
