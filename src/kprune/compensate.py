"""Knowledge after compensation: what the removal of a unit costs once the others have been refitted.

A change ΔW of a consumer's weights changes its output by δ_t = ΔW f_t at every token t. To second order, with tokens
and directions taken apart, the predictions lose ½ Σ_t ‖g_t‖² δ_tᵀ A δ_t, where g_t is the gradient of a probe of the
predictions with respect to the output, and A = Σ g_t g_tᵀ / Σ ‖g_t‖² says which directions they feel. With the Gram
matrix G = Σ_t ½ ‖g_t‖² f_t f_tᵀ that is tr(A ΔW G ΔWᵀ): a least-squares problem, so the rest can make up for what goes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kprune.gram import Gram

RIDGE = 1e-4
"""Of the mean diagonal, added to a Gram matrix before it is inverted."""
CHUNK = 0.02
"""The share of a sublayer's units that is removed at a time, one unit at the least."""
EVERY_WAY = 0.02
"""The part of A that feels all directions alike."""


class Sensitivity:
    """Running sums of G and A for one sublayer. A last column of ones stands for the bias, which is refitted too."""

    def __init__(self, features: int, outputs: int, device: torch.device) -> None:
        self.gram = Gram(features + 1, device, torch.float32)
        self.directions = Gram(outputs, device, torch.float32)

    def add(self, features: Tensor, gradient: Tensor, *, floor: float) -> Tensor:
        """Add tokens: their features, (tokens, features), and the gradient g of the output there, (tokens, d).

        Returns how much the predictions feel of each, ½ ‖g_t‖² / d; (tokens,). `floor` is added to that: what a token
        is worth that they do not feel.
        """
        felt = gradient.square().mean(1) / 2.0
        weights = felt[:, None] + floor
        self.gram.add(torch.cat([features, torch.ones_like(weights)], 1) * weights.sqrt())
        self.directions.add(gradient)
        return felt

    def knowledge(self, weight: Tensor, width: int, examples: int, *, bias: bool) -> Tensor:
        """Nats (or squared error) per example that each unit keeps; `weight` is the consumer's, (d, features)."""
        gram = self.gram.matrix.double() / examples
        if bias:
            mean = gram[:-1, -1:]  # the best bias takes the weighted mean out of every feature
            gram = gram - torch.nn.functional.pad(mean @ mean.T / gram[-1, -1], (0, 1, 0, 1))
        felt = self.directions.matrix.double()
        scale = felt.diagonal().mean()
        felt = felt / scale if scale > 0 else torch.zeros_like(felt)
        felt = (1.0 - EVERY_WAY) * felt
        felt.diagonal().add_(EVERY_WAY)
        seen = torch.linalg.cholesky(felt).T @ weight.double()
        return removal_costs(gram[:-1, :-1], seen, width)


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
        gone = torch.argsort(costs, stable=True)[:at_a_time]
        found[surgeon.units[gone]] = torch.maximum(costs[gone], highest)
        highest = torch.maximum(highest, costs[gone].max())
        surgeon.remove(gone)
    return found


class Surgeon:
    """Weights in the making: units are taken out of them, and what is left is always the best fit to what there was.

    The optimal brain surgeon's algebra. With H = G⁻¹, taking out the features S costs tr(W_S (H_SS)⁻¹ W_Sᵀ), the rest
    becomes W − W_S (H_SS)⁻¹ H_S, and the inverse of what is left of G is H − H_Sᵀ (H_SS)⁻¹ H_S.
    """

    def __init__(self, gram: Tensor, weight: Tensor, width: int, *, ridge: float) -> None:
        lifted = gram.double()
        lifted = lifted + torch.eye(len(lifted), dtype=torch.float64, device=gram.device) * max(
            ridge * float(lifted.diagonal().mean()), torch.finfo(torch.float32).tiny
        )
        self.inverse = torch.cholesky_inverse(torch.linalg.cholesky(lifted))
        self.weight = weight.double()
        self.width = width
        self.units = torch.arange(len(gram) // width, device=gram.device)
        """Numbers of the units that are left."""

    def costs(self) -> Tensor:
        """What the removal of each unit that is left would cost, alone; (units left,)."""
        size, width = len(self.units), self.width
        blocks = self.inverse.view(size, width, size, width).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        by_unit = self.weight.view(-1, size, width).transpose(0, 1)  # (units, outputs, width)
        if width == 1:
            return by_unit.square().sum((1, 2)) / blocks[:, 0, 0]
        solved: Tensor = torch.linalg.solve(blocks, by_unit, left=False)
        return (by_unit * solved).sum((1, 2))

    def remove(self, places: Tensor) -> float:
        """Take out units by their places among those that are left; returns what it cost."""
        is_left = torch.ones(len(self.units), dtype=torch.bool, device=places.device)
        is_left[places] = False
        stays = is_left.repeat_interleave(self.width).nonzero().squeeze(1)
        goes = (~is_left).repeat_interleave(self.width).nonzero().squeeze(1)
        taken = self.weight[:, goes]
        across = self.inverse[goes]
        block = torch.linalg.cholesky(across[:, goes])
        cost = float(torch.linalg.solve_triangular(block, taken.T, upper=False).square().sum())
        update = torch.cholesky_solve(across[:, stays], block)
        self.weight = self.weight[:, stays] - taken @ update
        self.inverse = self.inverse[stays][:, stays] - across[:, stays].T @ update
        self.units = self.units[is_left]
        return cost
