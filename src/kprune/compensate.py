"""Knowledge after compensation: what the removal of a unit costs once the others have been refitted.

A change ΔW of a consumer's weights changes its output by δ_t = ΔW f_t at every token t. To second order, with tokens
and directions taken apart, the predictions lose ½ Σ_t ‖g_t‖² δ_tᵀ A δ_t, where g_t is the gradient of a probe of the
predictions with respect to the output, and A = Σ g_t g_tᵀ / Σ ‖g_t‖² says which directions they feel. With the Gram
matrix G = Σ_t ½ ‖g_t‖² f_t f_tᵀ that is tr(A ΔW G ΔWᵀ): a least-squares problem, so the rest can make up for what goes.

Mean pooling does not take tokens apart. What the tokens of an example change alike adds up to (Σ_t g_t)ᵀ ΔW f̄, f̄ their
mean features: there, every example is added too, as if it were a token more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kprune.gram import Gram

RIDGE = 1e-4
"""Of the mean diagonal, added to a Gram matrix before it is inverted."""
CHUNK = 0.02
"""The share of a sublayer's units that is removed at a time, one unit at the least."""
CUT = 0.8
"""Removed units are cut off once no more than this share is left since the last cut."""
EVERY_WAY = 0.02
"""The part of A that feels all directions alike."""


class Sensitivity:
    """Running sums of G and A for one sublayer. A last column of ones stands for the bias, which is refitted too."""

    def __init__(self, features: int, outputs: int, device: torch.device) -> None:
        self.gram = Gram(features + 1, device)
        self.directions = Gram(outputs, device)

    @property
    def tensors(self) -> list[Tensor]:
        """The sums themselves."""
        return [self.gram.sums, self.directions.sums]

    def add(self, features: Tensor, gradient: Tensor, *, floor: float) -> Tensor:
        """Add tokens: their features, (tokens, features), and the gradient g of the output there, (tokens, d).

        Returns how much the predictions feel of each, ½ ‖g_t‖² / d; (tokens,). `floor` is added to that: what a token
        is worth that they do not feel.
        """
        felt = gradient.square().mean(1) / 2.0
        roots = (felt[:, None] + floor).sqrt()
        wide = features.new_empty(len(features), features.shape[1] + 1)
        torch.mul(features, roots, out=wide[:, :-1])
        wide[:, -1:] = roots
        self.gram.add(wide)
        self.directions.add(gradient)
        return felt

    def add_examples(self, features: Tensor, gradient: Tensor) -> None:
        """Add what examples change as a whole: the mean of their tokens' features, and the sum of their gradients."""
        self.add(features, gradient, floor=0.0)

    def knowledge(self, weight: Tensor, width: int, examples: int, *, bias: bool) -> Tensor:
        """Nats (or squared error) per example that each unit keeps; `weight` is the consumer's, (d, features)."""
        gram = self.gram.matrix.div_(examples)
        if bias:
            along = gram[:-1, -1] / gram[-1, -1].sqrt()  # the best bias takes the weighted mean out of every feature
            gram[:-1, :-1].addr_(along, along, alpha=-1.0)
        felt = self.directions.matrix
        scale = felt.diagonal().mean()
        felt = felt / scale if scale > 0 else torch.zeros_like(felt)
        felt = (1.0 - EVERY_WAY) * felt
        felt.diagonal().add_(EVERY_WAY)
        return removal_costs(gram[:-1, :-1], _factor(felt, 0.0).T @ weight.double(), width)


def removal_costs(gram: Tensor, weight: Tensor, width: int, *, chunk: float = CHUNK, ridge: float = RIDGE) -> Tensor:
    """What each unit's removal costs when units go cheapest first and the rest makes up for them; (units,).

    `gram` is (features, features) and `weight` (outputs, features); a unit has `width` features in a row. A unit's cost
    is the largest met up to its own removal: of units that stand in for each other the first is cheap and the last is
    not, and no unit is worth less than one that went before.
    """
    surgeon = Surgeon(gram, weight, width, ridge=ridge)
    found = torch.zeros(len(gram) // width, dtype=torch.float64, device=gram.device)
    at_a_time = max(1, int(chunk * len(found)))
    highest = found.new_zeros(())
    while len(surgeon.units):
        costs = surgeon.costs()
        cheapest = torch.argsort(costs, stable=True)[:at_a_time]
        gone = surgeon.units[cheapest]
        found[gone] = torch.maximum(costs[cheapest], highest)
        highest = torch.maximum(highest, costs[cheapest].max())
        surgeon.remove(gone)
    return found


def _factor(matrix: Tensor, ridge: float) -> Tensor:
    """The Cholesky factor of a matrix with a ridge, relative to its mean diagonal.

    Sums are rounded: where features hardly vary, what is left of them may not be positive. Then the ridge grows to what
    the rounding needs.
    """
    mean = max(float(matrix.diagonal().mean()), torch.finfo(torch.float32).tiny)
    for lift in (ridge, *(max(ridge, 1e-12) * 10.0**power for power in range(1, 12))):
        lifted = matrix.clone()
        lifted.diagonal().add_(lift * mean)
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(lifted)
        if not failed:
            return factor
    raise ArithmeticError("the matrix is not positive, nor near to it")


class Surgeon:
    """Weights in the making: units are taken out of them, and what is left is always the best fit to what there was.

    The optimal brain surgeon's algebra. With H = G⁻¹, taking out the features S costs tr(W_S (H_SS)⁻¹ W_Sᵀ), the rest
    becomes W − W_S (H_SS)⁻¹ H_S, and the inverse of what is left of G is H − H_Sᵀ (H_SS)⁻¹ H_S. Rows and columns of S
    are zero then; they are cut off once they are many, because each cut is a copy.
    """

    def __init__(self, gram: Tensor, weight: Tensor, width: int, *, ridge: float) -> None:
        self._inverse = torch.cholesky_inverse(_factor(gram.double(), ridge)).contiguous()
        self._weight = weight.double().clone()
        self._width = width
        self._dense_units = len(gram) // width
        self._units = torch.arange(self._dense_units, device=gram.device)
        self._is_left = torch.ones_like(self._units, dtype=torch.bool)

    @property
    def units(self) -> Tensor:
        """Numbers of the units that are left."""
        return self._units[self._is_left]

    @property
    def weight(self) -> Tensor:
        """(outputs, features left)"""
        return self._weight[:, self._columns(self._is_left)]

    def costs(self) -> Tensor:
        """What the removal of each unit that is left would cost, alone; (units left,)."""
        size, width = len(self._units), self._width
        blocks = self._inverse.view(size, width, size, width).diagonal(dim1=0, dim2=2).permute(2, 0, 1)[self._is_left]
        if width == 1:
            return self._weight.square().sum(0)[self._is_left] / blocks[:, 0, 0]
        by_unit = self._weight.view(-1, size, width).transpose(0, 1)[self._is_left]  # (units, outputs, width)
        solved: Tensor = torch.linalg.solve(blocks, by_unit, left=False)
        return (by_unit * solved).sum((1, 2))

    def remove(self, units: Tensor) -> float:
        """Take out units by their numbers; returns what it cost."""
        gone = self._is_left.new_zeros(self._dense_units).index_fill_(0, units, True)[self._units]
        goes = self._columns(gone)
        across = self._inverse[goes]
        taken = self._weight[:, goes]
        block = _factor(across[:, goes], 0.0)
        cost = float(torch.linalg.solve_triangular(block, taken.T, upper=False).square().sum())
        update = torch.cholesky_solve(across, block)
        self._weight.addmm_(taken, update, alpha=-1.0)
        self._inverse.addmm_(across.T, update, alpha=-1.0)
        self._is_left &= ~gone
        if int(self._is_left.sum()) <= CUT * len(self._units):
            self._cut()
        return cost

    def _cut(self) -> None:
        columns = self._columns(self._is_left)
        self._inverse = self._inverse[columns][:, columns].contiguous()
        self._weight = self._weight[:, columns].contiguous()
        self._units = self._units[self._is_left]
        self._is_left = torch.ones_like(self._units, dtype=torch.bool)

    def _columns(self, of_units: Tensor) -> Tensor:
        return of_units.repeat_interleave(self._width).nonzero().squeeze(1)
