"""Criteria: ways to measure the knowledge of units (Section 3.2 of the paper, and beyond).

A criterion is a scalar to differentiate (`objective`) and sums that passes accumulate (`start`). The sums give every
unit's knowledge and, for some criteria, a weight per token for the refit. A new one is an entry in `CRITERIA`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from kprune.config import PruneConfig
from kprune.errors import KpruneError, NotFinite
from kprune.maths.losses import divergence, divergence_probe, random_signs, squared_error, squared_error_probe
from kprune.maths.unit_statistics import KnowledgeStatistics, ReleasedStatistics, SensitivityStatistics
from kprune.models.batches import Sample
from kprune.models.hooks import on_feature_grad, on_features, on_output_grad
from kprune.models.outputs import OutputKind, Prediction
from kprune.models.sublayer import Sublayer
from kprune.runtime.distributed import all_reduce_sum

RELEASED_GROUP = 32
"""Examples whose gradients the authors' code averages before it squares them (12 for SQuAD)."""


class Accumulation(ABC):
    """The sums of one measurement, over all of its sublayers."""

    def __init__(self, sublayers: Sequence[Sublayer], sample: Sample, kind: OutputKind, config: PruneConfig) -> None:
        self.sublayers, self.sample, self.kind, self.config = sublayers, sample, kind, config

    @abstractmethod
    def collect(self, number: int) -> AbstractContextManager[None]:
        """Within the context, the forward and backward pass over a batch is added to the sums."""

    @abstractmethod
    def all_reduce(self) -> None:
        """Add up the sums of all processes."""

    @abstractmethod
    def knowledge(self, sublayer: Sublayer) -> Tensor:
        """Knowledge of every unit, K_pred + λ K_rep; (units,). The sublayer's sums are freed."""

    def token_weights(self, sublayer: Sublayer) -> list[Tensor] | None:
        """Weights of the real tokens in the refit, per batch; None: all tokens count the same."""
        return None


def lost_knowledge(
    kind: OutputKind, student: Prediction, teacher: Prediction, config: PruneConfig, labels: Tensor | None = None
) -> Tensor:
    """Objective: lost knowledge (Equation 5), summed over the batch."""
    if kind.is_distribution:
        return divergence(student.values, teacher.values, teacher.weights, config.temperature).sum()
    return squared_error(student.values, teacher.values, teacher.weights).sum()


def curvature_probe(
    kind: OutputKind, student: Prediction, teacher: Prediction, config: PruneConfig, labels: Tensor | None = None
) -> Tensor:
    """Objective: a random probe of the second derivative of the lost knowledge, summed over the batch."""
    signs = random_signs(teacher.example, teacher.position, student.values.shape[-1], config.seed)
    if kind.is_distribution:
        return divergence_probe(student.values, teacher.values, teacher.weights, signs, config.temperature).sum()
    return squared_error_probe(student.values, teacher.weights, signs).sum()


def task_loss(kind: OutputKind, student: Prediction, teacher: Prediction, labels: Tensor | None) -> Tensor:
    """The loss of training, per row; without labels, the teacher's own prediction is the label.

    A predicted value that is its own label has no gradient: regression needs labels.
    """
    if kind.is_distribution:
        is_labelled = labels is not None and kind.name == "classification"
        right = labels.long() if is_labelled and labels is not None else teacher.values.argmax(-1)
        return teacher.weights * torch.nn.functional.cross_entropy(student.values, right, reduction="none")
    if labels is None or student.values.shape[-1] != 1:
        raise KpruneError(f"the loss of a model for {kind.name} needs labels; pass a labelled sample.")
    return teacher.weights * (student.values[:, 0] - labels.to(student.values.dtype)).square()


def summed_task_loss(
    kind: OutputKind, student: Prediction, teacher: Prediction, config: PruneConfig, labels: Tensor | None = None
) -> Tensor:
    """Objective: the loss of training, summed over the batch."""
    return task_loss(kind, student, teacher, labels).sum()


class MaskGradients(Accumulation):
    """Squared gradients of unit masks (Equation 6), and the energy of the units' outputs (Equation 8)."""

    def __init__(self, sublayers: Sequence[Sublayer], sample: Sample, kind: OutputKind, config: PruneConfig) -> None:
        super().__init__(sublayers, sample, kind, config)
        self._sums = {sublayer: self.statistics(sublayer) for sublayer in sublayers}

    @property
    def divisor(self) -> float:
        """Divisor of K_pred."""
        return 1.0

    def statistics(self, sublayer: Sublayer) -> KnowledgeStatistics:
        """Empty sums of a sublayer."""
        return KnowledgeStatistics(sublayer.units, sublayer.width, sublayer.consumer.weight.device)

    @contextmanager
    def collect(self, number: int) -> Iterator[None]:
        batch = self.sample.batches[number]
        added: set[Sublayer] = set()
        real = batch.mask.float()

        def add_features(sublayer: Sublayer, features: Tensor) -> None:
            if sublayer not in added:  # features of all tokens come before those of first tokens
                added.add(sublayer)
                self._sums[sublayer].add_features(features.detach(), real)

        def add_gradient(sublayer: Sublayer, features: Tensor, gradient: Tensor) -> None:
            self._sums[sublayer].add_gradient((features * gradient).sum(1), batch.example)

        # Features are read in the forward pass, while they are in the processor's cache.
        watched = self.sublayers if self.config.rep_weight else []
        shape = batch.mask.shape
        with on_features(watched, add_features, shape), on_feature_grad(self.sublayers, add_gradient, shape):
            yield

    def all_reduce(self) -> None:
        for sums in self._sums.values():
            all_reduce_sum(sums.tensors)

    def knowledge(self, sublayer: Sublayer) -> Tensor:
        sums, sample = self._sums.pop(sublayer), self.sample
        predictive = sums.predictive(sample.examples) / self.divisor
        energy = sums.representational(sublayer.consumer.weight, sample.examples, sample.tokens)
        return predictive + (self.config.rep_weight or 0.0) * energy


class PaperMaskGradients(MaskGradients):
    """The same with the 1/γ² of Equation 6, which belongs to the divergence."""

    @property
    def divisor(self) -> float:
        return self.config.temperature**2 if self.kind.is_distribution else 1.0


class ReleasedMaskGradients(MaskGradients):
    """The same on the scales of the authors' released code."""

    def statistics(self, sublayer: Sublayer) -> KnowledgeStatistics:
        device = sublayer.consumer.weight.device
        return ReleasedStatistics(
            sublayer.units, sublayer.width, device, examples=self.sample.examples, group=RELEASED_GROUP
        )


class OutputSensitivity(Accumulation):
    """Gram matrices weighted by the gradient of the sublayer's output: removal costs after compensation."""

    def __init__(self, sublayers: Sequence[Sublayer], sample: Sample, kind: OutputKind, config: PruneConfig) -> None:
        super().__init__(sublayers, sample, kind, config)
        self._sums = {
            s: SensitivityStatistics(s.features, s.consumer.out_features, s.consumer.weight.device) for s in sublayers
        }
        # One tensor per sublayer, split by batch: many small allocations would scatter the heap.
        sizes = [int(batch.mask.sum()) for batch in sample.batches]
        self._sensitivity = {s: s.consumer.weight.new_empty(sum(sizes)).split(sizes) for s in sublayers}

    @contextmanager
    def collect(self, number: int) -> Iterator[None]:
        batch = self.sample.batches[number]

        def add(sublayer: Sublayer, features: Tensor, gradient: Tensor) -> None:
            sums = self._sums[sublayer]
            if self.kind.averages_tokens:
                means = batch.totals(features) / batch.mask.sum(1, keepdim=True)
                sums.add_examples(means, batch.totals(gradient))
            floor = self.config.rep_weight or 0.0
            sensitivity = sums.add(batch.real(features), batch.real(gradient), floor=floor)
            self._sensitivity[sublayer][number].copy_(sensitivity)

        with on_output_grad(self.sublayers, add, batch.mask.shape):
            yield

    def all_reduce(self) -> None:
        for sums in self._sums.values():
            all_reduce_sum(sums.tensors)

    def knowledge(self, sublayer: Sublayer) -> Tensor:
        consumer = sublayer.consumer
        sums = self._sums.pop(sublayer)
        try:
            return sums.removal_costs(
                consumer.weight, sublayer.width, self.sample.examples, bias=consumer.bias is not None
            )
        except ArithmeticError as error:
            raise not_finite(sublayer) from error

    def token_weights(self, sublayer: Sublayer) -> list[Tensor] | None:
        """1 plus the token's sensitivity relative to the mean."""
        sensitivity = self._sensitivity[sublayer]
        flat = torch.cat(sensitivity).double()
        total = torch.stack([flat.sum(), flat.new_tensor(len(flat))])
        all_reduce_sum([total])
        mean = (total[0] / total[1]).to(sensitivity[0].dtype)
        return [1.0 + values / mean if mean > 0 else torch.ones_like(values) for values in sensitivity]


def not_finite(sublayer: Sublayer) -> NotFinite:
    return NotFinite(f"the knowledge measured in {sublayer.name} is not finite; load the model in float32.")


Objective = Callable[[OutputKind, Prediction, Prediction, PruneConfig, Tensor | None], Tensor]
"""The scalar that is differentiated, from the kind, the student's and the teacher's predictions, config and labels."""


@dataclass(frozen=True)
class Criterion:
    """A way to measure knowledge, with the coefficients that belong to its scale."""

    name: str
    objective: Objective
    start: type[Accumulation]
    """The sums of a measurement."""
    rep_weight: float
    """λ, the weight of representational knowledge."""
    head_weight: float | None
    """μ, the weight of heads relative to neurons; None: the width d_h of a head."""
    refresh: int = 1
    """Sublayers between two measurements; 0: one measurement serves the whole run."""
    causal_rep_weight: float | None = None
    """λ for causal language models, if it is another: every token predicts, and a stream's scale grows with depth."""
    is_cross_validated: bool = False
    """Whether the refit's ridge is chosen per sublayer by cross-validation, unless the configuration sets one."""
    wants_labels: bool = False
    leaves_tensors: bool = False
    """Whether every batch of a measurement leaves small tensors behind."""


CRITERIA = {
    criterion.name: criterion
    for criterion in (
        Criterion(
            "compensated",
            curvature_probe,
            OutputSensitivity,
            rep_weight=1e-6,
            head_weight=1.0,
            refresh=0,
            causal_rep_weight=1e-10,
            is_cross_validated=True,
            leaves_tensors=True,
        ),
        Criterion(
            "fisher",
            curvature_probe,
            MaskGradients,
            rep_weight=1e-5,
            head_weight=1.0,
        ),
        Criterion(
            "paper",
            lost_knowledge,
            PaperMaskGradients,
            rep_weight=2.5e-4,
            head_weight=64.0,
        ),
        Criterion(
            "released",
            lost_knowledge,
            ReleasedMaskGradients,
            rep_weight=2.5e-4,
            head_weight=None,
        ),
        Criterion(
            "gradient",
            summed_task_loss,
            MaskGradients,
            rep_weight=0.0,
            head_weight=1.0,
            wants_labels=True,
        ),
    )
}
