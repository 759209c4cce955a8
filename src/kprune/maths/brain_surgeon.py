"""Greedy removal of units by the optimal brain surgeon's algebra: the remaining weights are always the best fit."""

from __future__ import annotations

import torch
from torch import Tensor

RIDGE = 1e-4
"""Added to a Gram matrix before it is inverted, relative to its mean diagonal."""
CHUNK = 0.02
"""Share of a sublayer's units removed per step, at least one unit."""
COMPACT_BELOW = 0.8
"""Removed rows and columns are dropped once at most this share is left since the last time."""


def removal_costs(gram: Tensor, weight: Tensor, width: int, *, chunk: float = CHUNK, ridge: float = RIDGE) -> Tensor:
    """Cost of each unit's removal when units are removed cheapest first and the remaining ones compensate; (units,).

    `gram` is (features, features) and `weight` (outputs, features); a unit has `width` adjacent features. A unit's cost
    is the running maximum up to its removal: of two units that replace each other the first is cheap and the last is
    not, and no unit costs less than one that was removed before.
    """
    surgeon = BrainSurgeon(gram, weight, width, ridge=ridge)
    total = torch.zeros(len(gram) // width, dtype=torch.float64, device=gram.device)
    per_step = max(1, int(chunk * len(total)))
    highest = total.new_zeros(())
    while len(surgeon.units):
        costs = surgeon.costs()
        cheapest = torch.argsort(costs, stable=True)[:per_step]
        removed = surgeon.units[cheapest]
        total[removed] = torch.maximum(costs[cheapest], highest)
        highest = torch.maximum(highest, costs[cheapest].max())
        surgeon.remove(removed)
    return total


def removal_path(
    gram: Tensor, weight: Tensor, width: int, *, per_step: int = 1, ridge: float = RIDGE
) -> tuple[Tensor, Tensor, Tensor]:
    """Removal of all units, the `per_step` cheapest at a time: their order, and counts and errors after each step.

    The order is of unit numbers, the first removed one first, (units,). After each step, from none to all, are given
    the units removed and ‖ŴF − WF‖² / ‖WF‖² with the remaining weights at their best, from 0 to 1; (steps + 1,).
    """
    surgeon = BrainSurgeon(gram, weight, width, ridge=ridge)
    order, costs = [], []
    while len(surgeon.units):
        cheapest = surgeon.units[torch.argsort(surgeon.costs(), stable=True)[:per_step]]
        order.append(cheapest)
        costs.append(surgeon.remove(cheapest))
    counts = torch.tensor([0, *(len(each) for each in order)]).cumsum(0)
    total = torch.tensor([0.0, *costs], dtype=torch.float64).cumsum(0)
    return torch.cat(order), counts, total / total[-1].clamp(min=torch.finfo(torch.float64).tiny)


def cholesky_factor(matrix: Tensor, ridge: float) -> Tensor:
    """The Cholesky factor of a matrix with a ridge, relative to its mean diagonal.

    Rounding can make the Gram matrix of nearly constant features indefinite: the ridge then grows until it is positive.
    """
    mean = max(float(matrix.diagonal().mean()), torch.finfo(torch.float32).tiny)
    for shift in (ridge, *(max(ridge, 1e-12) * 10.0**power for power in range(1, 12))):
        shifted = matrix.clone()
        shifted.diagonal().add_(shift * mean)
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not failed:
            return factor
    raise ArithmeticError("the matrix is not positive definite")


class BrainSurgeon:
    """Weights from which units are removed; the remaining weights are always the best fit to the original output.

    With H = G⁻¹, removing the features S costs tr(W_S (H_SS)⁻¹ W_Sᵀ). The remaining weights become
    W − W_S (H_SS)⁻¹ H_S, and the inverse of the remaining G is H − H_Sᵀ (H_SS)⁻¹ H_S. Rows and columns of S are zero
    then; they are dropped only once they are many, because each drop is a copy.
    """

    def __init__(self, gram: Tensor, weight: Tensor, width: int, *, ridge: float) -> None:
        self._inverse = torch.cholesky_inverse(cholesky_factor(gram.double(), ridge)).contiguous()
        self._weight = weight.double().clone()
        self._width = width
        self._dense_units = len(gram) // width
        self._units = torch.arange(self._dense_units, device=gram.device)
        self._remains = torch.ones_like(self._units, dtype=torch.bool)

    @property
    def units(self) -> Tensor:
        """Numbers of the remaining units."""
        return self._units[self._remains]

    @property
    def weight(self) -> Tensor:
        """Remaining weights, (outputs, remaining features)."""
        return self._weight[:, self._columns(self._remains)]

    def costs(self) -> Tensor:
        """Cost of removing each remaining unit alone; (remaining units,)."""
        size, width = len(self._units), self._width
        blocks = self._inverse.view(size, width, size, width).diagonal(dim1=0, dim2=2).permute(2, 0, 1)[self._remains]
        if width == 1:
            return self._weight.square().sum(0)[self._remains] / blocks[:, 0, 0]
        by_unit = self._weight.view(-1, size, width).transpose(0, 1)[self._remains]  # (units, outputs, width)
        # Not an LU solve: that of MKL fails for wide blocks on two threads.
        factors = torch.linalg.cholesky(blocks)
        solved: Tensor = torch.linalg.solve_triangular(factors, by_unit.mT, upper=False)
        return solved.square().sum((1, 2))

    def remove(self, units: Tensor) -> float:
        """Remove units by their numbers; returns the cost."""
        removed = self._remains.new_zeros(self._dense_units).index_fill_(0, units, True)[self._units]
        columns = self._columns(removed)
        across = self._inverse[columns]
        removed_weight = self._weight[:, columns]
        block = cholesky_factor(across[:, columns], 0.0)
        cost = float(torch.linalg.solve_triangular(block, removed_weight.T, upper=False).square().sum())
        update = torch.cholesky_solve(across, block)
        self._weight.addmm_(removed_weight, update, alpha=-1.0)
        self._inverse.addmm_(across.T, update, alpha=-1.0)
        self._remains &= ~removed
        if int(self._remains.sum()) <= COMPACT_BELOW * len(self._units):
            self._compact()
        return cost

    def _compact(self) -> None:
        columns = self._columns(self._remains)
        self._inverse = self._inverse[columns][:, columns].contiguous()
        self._weight = self._weight[:, columns].contiguous()
        self._units = self._units[self._remains]
        self._remains = torch.ones_like(self._units, dtype=torch.bool)

    def _columns(self, units: Tensor) -> Tensor:
        return units.repeat_interleave(self._width).nonzero().squeeze(1)
