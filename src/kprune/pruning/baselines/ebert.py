"""EBERT (Liu et al., Findings of ACL 2021), a rival that retrains: every input has units of its own.

A predictor per sublayer reads the mean of its residual stream and opens or closes heads, and groups of neurons, for
this input. Predictors and model are trained together on the labels; a penalty pulls the mean FLOPs to the budget. The
result is not a smaller model: it is evaluated with its gates on, and reported by its mean FLOPs.

Differences: groups have 16 neurons; the penalty is the squared distance of the mean share of FLOPs from the budget;
embeddings are not trained. At the end one threshold for all gates is set so that a part of the sample meets the budget,
because the penalty alone misses it when there is little time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from kprune.errors import KpruneError
from kprune.models.batches import Batch
from kprune.models.gates import Gates
from kprune.models.passes import call
from kprune.pruning.baselines.one_shot import OneShot
from kprune.pruning.baselines.training import fine_tuning_loss, require_labels, train, training_batches
from kprune.pruning.budgets import FLOPS, budget_named
from kprune.runtime.memory import guard_memory

GROUP = 16
"""Neurons that one gate opens."""
PENALTY = 10.0
"""Weight of the squared distance of the mean share of FLOPs from the budget, beside the loss per example."""
CALIBRATED = 256
"""Examples on which the threshold is set, spread over all lengths."""
HALVINGS = 16
LARGEST_THRESHOLD = 8.0
"""The threshold is searched between minus and plus this logit."""
TRAINED = "training-000"
"""The journal's name of the trained model."""


class EBERT(OneShot):
    """Needs labels, one process and a budget of FLOPs. All units stay; gates are part of the model."""

    name = "ebert"
    wants_labels = True
    settings: ClassVar[dict[str, Any]] = {"epochs": 3.0, "minutes": None}
    training_work = 400.0

    def masks(self) -> list[Tensor]:
        require_labels(self.name, self.run.shared)
        if budget_named(self.config.budget) != FLOPS:
            raise KpruneError(f"the method {self.name} has a budget of {FLOPS.name} only; leave --budget out.")
        self._allowed = self.run.remaining
        return [torch.ones(sublayer.units, dtype=torch.bool) for sublayer in self.run.sublayers]

    def finish(self, report: Callable[[float], None]) -> None:
        """Add the gates, train them with the model, and set their threshold; a finished training is in the journal."""
        run = self.run
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            self._gates = Gates(run.student, run.sublayers, run.prices, GROUP)
        if self._allowed <= self._gates.overhead:
            raise KpruneError(f"the predictors of {self.name} alone cost more than the budget; remove less.")
        kept = self.journal.read(TRAINED)
        if kept is None:
            self._train(report)
            self._set_threshold()
            self.journal.write(TRAINED, dict(run.student.state_dict()), {})
        else:
            run.student.load_state_dict(kept[0])
        run.student.eval()

    def flops(self) -> float:
        """Mean FLOPs over the sample, predictors included."""
        return self._mean_cost(self.run.shared.sample.batches)

    def _train(self, report: Callable[[float], None]) -> None:
        run, gates, student = self.run, self._gates, self.run.student.train()
        kind, wanted = run.shared.predictions.kind, (self._allowed - gates.overhead) / run.dense

        def backpropagate(batch: Batch) -> None:
            loss = fine_tuning_loss(kind, student, batch)
            assert gates.last is not None
            share = gates.last.mean() / run.dense
            (loss + PENALTY * (share - wanted).square()).backward()

        seconds = None if self.config.minutes is None else 60.0 * self.config.minutes
        batches, new = training_batches(run.shared.sample), list(gates.parameters())
        train(student, batches, backpropagate, self.config, seconds, report, phase=0, new=new)
        gates.restart()

    def _set_threshold(self) -> None:
        """Set the smallest threshold, up to halvings of its range, whose mean cost is within the budget."""
        self.run.student.eval()
        batches = self.run.shared.sample.batches
        rows = -(-CALIBRATED // len(batches))
        few = [batch.rows(slice(None, None, -(-len(batch.example) // rows))) for batch in batches]
        low, high = -LARGEST_THRESHOLD, LARGEST_THRESHOLD
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            self._gates.set_threshold(middle)
            low, high = (low, middle) if self._mean_cost(few) <= self._allowed else (middle, high)
        self._gates.set_threshold(high)

    @torch.no_grad()
    def _mean_cost(self, batches: list[Batch]) -> float:
        self._gates.restart()
        with guard_memory():
            for batch in batches:
                call(self.run.student, batch)
        mean = self._gates.mean_cost
        self._gates.restart()
        return mean
