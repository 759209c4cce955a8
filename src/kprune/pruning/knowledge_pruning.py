"""K-prune: measure, search and refit, sublayer by sublayer (Section 3 of the paper)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from kprune.maths.selection import best_share, groups_of, select_groups
from kprune.models.sublayer import Sublayer
from kprune.pruning.criteria import CRITERIA
from kprune.pruning.journal import Journal
from kprune.pruning.measurement import Measured, measure, require_knowledge
from kprune.pruning.method import Choice, Method
from kprune.pruning.native_shape import NativeShape
from kprune.pruning.refit import Fit, cross_validated_fit, keep_weights, least_squares_fit, require_improvement
from kprune.pruning.run import Run, group_sizes
from kprune.pruning.streams import Streams
from kprune.runtime.distributed import all_true, broadcast


class KPrune(Method):
    """Measure (Equations 5-9), search (Algorithm 1), refit (Equations 10-11)."""

    name = "kprune"

    def __init__(self, run: Run, journal: Journal, tick: Callable[[], None]) -> None:
        super().__init__(run, journal, tick)
        self.criterion = CRITERIA[self.config.criterion or ""]
        self._known: list[Measured] = []  # of the sublayers from `_known_from` on
        self._known_from = 0
        search = run.native_search
        self._keeps_all = run.all_fit(0) and (search is None or search.allows_all)

    @property
    def is_measured(self) -> list[bool]:
        refresh = self.config.refresh if self.config.refit else 0
        return [step == 0 or bool(refresh and step % refresh == 0) for step in range(len(self.run.sublayers))]

    def prepare(self, step: int, streams: Streams, *, is_recalled: bool) -> None:
        if not self.is_measured[step]:
            return
        serves_next = step + 1 < len(self.is_measured) and not self.is_measured[step + 1]
        self._known, self._known_from = [], step
        if self._fits(step) or (is_recalled and not serves_next):
            return
        self._known = self._measured(step, streams, serves_next)

    def choose(self, step: int) -> Choice:
        run, config = self.run, self.config
        target = run.sublayers[step]
        known = self._known[step - self._known_from :]
        weights = known[0].token_weights if known else None
        if self._fits(step):
            return Choice(torch.ones(target.units, dtype=torch.bool), weights)
        scores = [each.scores for each in known]
        if config.search == "uniform":
            return Choice(broadcast(best_share(scores[0].cpu(), 1.0 - config.reduction)), weights)
        if run.native_search is not None:
            run.native = run.native or self._native_shape(scores)
            return Choice(broadcast(groups_of(scores[0].cpu(), 1) < run.native.units_of(target.kind)), weights)
        sizes = group_sizes(run.sublayers[step:], config)
        return Choice(broadcast(select_groups(scores, run.prices[step:], sizes, run.remaining)[0]), weights)

    @property
    def is_cross_validated(self) -> bool:
        return self.config.refit and self.config.ridge is None

    @property
    def fit(self) -> Fit:
        if not self.config.refit:
            return keep_weights
        return cross_validated_fit if self.config.ridge is None else least_squares_fit(self.config.ridge)

    def check(self, target: Sublayer, before: float, after: float) -> None:
        require_improvement(target, before, after, self.config.ridge or 0.0)

    @property
    def state(self) -> dict[str, Any]:
        return {} if self.run.native is None else {"native": asdict(self.run.native)}

    def restore(self, state: dict[str, Any]) -> None:
        if "native" in state:
            self.run.native = NativeShape(**state["native"])

    def _fits(self, step: int) -> bool:
        """Whether a sublayer keeps all units; in a native model, all sublayers or none do."""
        return self._keeps_all if self.config.native else self.run.all_fit(step)

    def _native_shape(self, scores: list[Tensor]) -> NativeShape:
        """The shape of all layers, by the first measurement, which has all sublayers."""
        run = self.run
        assert run.native_search is not None
        knowledge = [broadcast(values.cpu() * cost) for values, cost in zip(scores, run.costs, strict=True)]
        return run.native_search.best(knowledge, group_sizes(run.sublayers, self.config), run.remaining)

    def _measured(self, step: int, streams: Streams, is_kept: bool) -> list[Measured]:
        """Knowledge of the sublayers from `step` on: measured now, or recalled."""
        run, shared = self.run, self.run.shared
        measured = shared.first if step == 0 else None
        if measured is None and is_kept:
            tokens = [batch.real_tokens for batch in shared.sample.batches]
            measured = self.journal.recall_measured(step, run.sublayers[step:], tokens)
        if not all_true(measured is not None) or measured is None:
            measured = self._measure(step, streams)
            if is_kept:
                self.journal.add_measured(step, measured)
        if step == 0:
            shared.first = measured
        return measured

    def _measure(self, step: int, streams: Streams) -> list[Measured]:
        run = self.run
        measured = measure(
            run.student,
            run.sublayers[step:],
            run.costs[step:],
            streams.student,
            run.shared.predictions,
            self.criterion,
            self.config,
            is_teacher=streams.are_equal,
            tick=self.tick,
        )
        require_knowledge(measured, self.config)
        if any(self.is_measured[step + 1 :]):  # later measurements compare with the same bits
            self.journal.add_predictions(run.shared.predictions)
        return measured


def preview(method: KPrune, streams: Streams) -> list[int]:
    """Units of each sublayer that the first measurement alone would keep."""
    run = method.run
    kept: list[int] = []
    method.prepare(0, streams, is_recalled=False)
    for step in range(len(run.sublayers)):
        kept.append(int(method.choose(step).keep.sum()))
        run.spend(step, kept[-1])
    return kept
