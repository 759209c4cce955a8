"""The plan of a pruning, without doing it: what would be removed, how long it takes and how much memory it needs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from kprune.config import PruneConfig, RunConfig
from kprune.jobs.preparation import Prepared
from kprune.models.sublayer import find
from kprune.pruning.budgets import budget_named, flops_per_unit, parameters_per_unit
from kprune.pruning.forecast import forecast, removed_range
from kprune.pruning.rehearsal import rehearse


@dataclass(frozen=True)
class Plan:
    """What a run would do; the exact shape is not known before, so that sizes are ranges."""

    title: str
    layers: int
    tokens: int
    """Real tokens of the sample."""
    examples: int
    reduction: float
    budget: str
    flops: float
    """Of the dense encoder, on one input of the sample's mean length."""
    flops_removed: tuple[float, float]
    parameters: int
    parameters_removed: tuple[float, float]
    bytes_per_parameter: int
    seconds: float
    """Of the pruning; loading, sampling and writing come on top."""
    measuring_seconds: float
    refitting_seconds: float
    megabytes: float
    """Peak memory of the process."""
    threads: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def plan(prepared: Prepared, config: PruneConfig, run: RunConfig) -> Plan:
    """The plan of pruning a prepared model, after a rehearsal of the run on a few batches."""
    pruner = prepared.pruner(config, run)
    rehearsal, extent = rehearse(pruner)
    expected = forecast(rehearsal, extent)
    sample, budget = pruner.shared.sample, budget_named(config.budget)
    sublayers = [sublayer for sublayer in find(prepared.model) if sublayer.units]
    prices = [float(budget.price(sublayer, sample.mean_length)[-1]) for sublayer in sublayers]
    flops = [flops_per_unit(sublayer, sample.mean_length) * sublayer.units for sublayer in sublayers]
    parameters = [parameters_per_unit(sublayer) * sublayer.units for sublayer in sublayers]
    spent = config.reduction * sum(prices)
    return Plan(
        title=prepared.source.title,
        layers=len({sublayer.index for sublayer in sublayers}),
        tokens=sample.tokens,
        examples=sample.examples,
        reduction=config.reduction,
        budget=budget.name,
        flops=sum(flops),
        flops_removed=removed_range(list(zip(prices, flops, strict=True)), spent),
        parameters=prepared.model.num_parameters(),
        parameters_removed=removed_range(list(zip(prices, parameters, strict=True)), spent),
        bytes_per_parameter=prepared.model.dtype.itemsize,
        seconds=expected.seconds,
        measuring_seconds=expected.measuring_seconds,
        refitting_seconds=expected.refitting_seconds,
        megabytes=expected.megabytes,
        threads=torch.get_num_threads(),
    )
