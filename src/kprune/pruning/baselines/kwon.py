"""Kwon et al., "A Fast Post-Training Pruning Framework for Transformers" (NeurIPS 2022), with a FLOPs budget.

Fisher information of the task's loss selects the units, a greedy exchange rearranges them within each sublayer, and
least squares tune the masks of the remaining units. Here the tuned masks are folded into the consumer's weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.errors import KpruneError
from kprune.maths.least_squares import LeastSquares
from kprune.models.resize import shrink
from kprune.models.sublayer import Sublayer
from kprune.pruning.baselines.one_shot import OneShot
from kprune.pruning.baselines.task_gradients import task_gradients
from kprune.pruning.budgets import budget_named
from kprune.pruning.refit import Fit
from kprune.pruning.run import Run

DAMP = 1.0
LARGEST_MASK = 10.0


def require_scipy(method: str) -> None:
    """Raise if scipy is not installed."""
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise KpruneError(f"the method {method} needs scipy: pip install 'kprune[data]'.") from error


class MaskTuning(OneShot):
    """A method that tunes mask values by least squares, until they diverge in some sublayer."""

    has_stopped = False
    """Whether masks diverged: that sublayer and all above keep their weights."""

    @property
    def fit(self) -> Fit:
        return self._tune

    @property
    def state(self) -> dict[str, Any]:
        return {"has_stopped": self.has_stopped}

    def restore(self, state: dict[str, Any]) -> None:
        self.has_stopped = bool(state["has_stopped"])

    def _tune(self, target: Sublayer, problem: LeastSquares, weights: Tensor) -> Tensor:
        if self.has_stopped or not target.units:
            return weights
        masks = tuned_masks(problem, weights, target.width)
        if masks is None:
            self.has_stopped = True
            return weights
        scale = torch.cat([masks.repeat_interleave(target.width), masks.new_ones(1)]).to(weights)
        return scale[:, None] * weights


class Kwon(MaskTuning):
    """Needs labels if a model's own prediction is no label (regression, embeddings)."""

    name = "kwon"
    wants_labels = True

    def masks(self) -> list[Tensor]:
        return self._rearranged(self.run.remaining)

    def target_model(self) -> tuple[PreTrainedModel, bool]:
        """A model that keeps the square root of the student's share."""
        require_scipy(self.name)
        config = replace(self.config, reduction=1.0 - (1.0 - self.config.reduction) ** 0.5)
        halfway = Run(self.run.shared, config, budget_named(config.budget))
        for sublayer, keep in zip(halfway.sublayers, self._rearranged(halfway.remaining), strict=True):
            shrink(sublayer, keep)
        return halfway.student, False

    @property
    def _gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        shared = self.run.shared
        shared.gradients = shared.gradients or task_gradients(self.run.student, self.run.sublayers, shared)
        return shared.gradients

    def _rearranged(self, budget: float) -> list[Tensor]:
        fishers, vectors = self._gradients
        is_head = [sublayer.kind == "attention" for sublayer in self.run.sublayers]
        masks = fisher_search(fishers, is_head, self.run.prices, budget)
        return [rearrange(*each) for each in zip(masks, fishers, vectors, strict=True)]


def fisher_search(
    fishers: Sequence[Tensor], is_head: Sequence[bool], prices: Sequence[Tensor], budget: float
) -> list[Tensor]:
    """Masks with the largest sum of Fisher information that the budget allows.

    Heads stay best first over all sublayers, and so do neurons. For each number of heads, as many neurons stay as the
    rest of the budget allows; the best pair is taken. `prices` are the costs of 0, 1, 2, … units of each sublayer.
    """
    sizes = [len(fisher) for fisher in fishers]
    fisher = torch.cat(list(fishers))
    costs = torch.cat([_costs_best_first(*each) for each in zip(fishers, prices, strict=True)])
    heads_at = torch.tensor(is_head).repeat_interleave(torch.tensor(sizes))
    heads, head_sums, head_costs = _best_first(heads_at.nonzero().squeeze(1), fisher, costs)
    neurons, neuron_sums, neuron_costs = _best_first((~heads_at).nonzero().squeeze(1), fisher, costs)
    affordable = int((head_costs <= budget).sum())
    counts = torch.searchsorted(neuron_costs, budget - head_costs[:affordable], right=True) - 1
    chosen = int((head_sums[:affordable] + neuron_sums[counts]).argmax())
    keep = torch.zeros(len(fisher), dtype=torch.bool)
    keep[heads[:chosen]] = True
    keep[neurons[: int(counts[chosen])]] = True
    return list(keep.split(sizes))


def _costs_best_first(fisher: Tensor, price: Tensor) -> Tensor:
    """What each unit adds to the price of its sublayer when the best ones are taken first."""
    costs = torch.empty_like(price[1:])
    costs[fisher.argsort(descending=True, stable=True)] = price.diff()
    return costs


def _best_first(numbers: Tensor, fisher: Tensor, costs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers of units, best first, and the Fisher information and the cost of the first 0, 1, 2, … of them."""
    order = numbers[fisher[numbers].argsort(descending=True, stable=True)]
    fisher_sums, cost_sums = (torch.cat([each.new_zeros(1), each[order].cumsum(0)]) for each in (fisher, costs))
    return order, fisher_sums, cost_sums


def rearrange(keep: Tensor, fisher: Tensor, vectors: Tensor) -> Tensor:
    """A mask with as many units whose removed units' gradients cancel out better.

    In ascending order of Fisher information, each kept unit is removed. Then the removed unit whose return leaves the
    smallest ‖Σ g‖² over the removed ones is put back; it may be the same unit.
    """
    keep = keep.clone()
    if bool(keep.all()) or not bool(keep.any()):
        return keep
    norms = vectors.square().sum(0)
    total = vectors[:, ~keep].sum(1)
    for unit in fisher.argsort(stable=True).tolist():
        if not keep[unit]:
            continue
        keep[unit] = False
        total = total + vectors[:, unit]
        gain = norms - 2.0 * (total @ vectors)  # the part of ‖total − g‖² that depends on g
        back = int(gain.masked_fill(keep, torch.inf).argmin())
        keep[back] = True
        total = total - vectors[:, back]
    return keep


def mask_equations(problem: LeastSquares, weights: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """AᵀA and Aᵀ(Q − A·1) of the least squares over masks: A's columns are the units' outputs.

    `weights` are (features + 1) × d, the bias last. AᵀA = Σ over a pair's features of (W Wᵀ) ⊙ (PᵀP).
    """
    w = weights[:-1]
    products = (w @ w.T) * problem.gram[:-1, :-1]
    units = len(w) // width
    gram = products.view(units, width, units, width).sum((1, 3))
    projected = (w * problem.cross[:-1]).sum(1).view(units, width).sum(1)
    return gram, projected - gram.sum(1)


def tuned_masks(problem: LeastSquares, weights: Tensor, width: int) -> Tensor | None:
    """Mask values that bring the sublayer's output closest to its target; None if they diverge."""
    gram, missing = mask_equations(problem, weights, width)
    if width > 1:  # heads: LSMR on A, which solves (AᵀA + damp²) x = Aᵀb
        change = torch.linalg.solve(gram + DAMP**2 * torch.eye(len(gram)).to(gram), missing)
    else:  # neurons: LSMR on the normal equations
        from scipy.sparse.linalg import lsmr

        solution = lsmr(gram.cpu().numpy(), missing.cpu().numpy(), damp=DAMP)
        if solution[1] == 7:  # the limit of iterations
            return None
        change = torch.from_numpy(np.asarray(solution[0]))
    masks = 1.0 + change
    return masks if bool(masks.isfinite().all()) and float(masks.abs().max()) <= LARGEST_MASK else None
