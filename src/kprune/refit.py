"""Knowledge-preserving weight-tuning (Equations 10, 11): least squares from running sums."""

from __future__ import annotations

import torch
from torch import Tensor

from kprune.gram import Gram, rounded, scales


class LeastSquares:
    """min ‖P W − Q‖² over everything added so far, held as PᵀP, PᵀQ and ‖Q‖² in float64; tokens may have weights.

    P (tokens × features) are a student's kept features and Q (tokens × d) what its stream lacks. Memory is features²,
    whatever the number of tokens, and sums of two parts of a sample add up to the sums of the whole. A last column of
    ones stands for the bias, so one solution holds both.
    """

    def __init__(self, features: int, outputs: int, device: torch.device) -> None:
        self._gram = Gram(features + 1, device)
        self.cross = torch.zeros(features + 1, outputs, dtype=torch.float64, device=device)
        self.energy = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, p: Tensor, q: Tensor, weights: Tensor | None = None) -> None:
        """Add tokens: `p` of shape (tokens, features), `q` of shape (tokens, d), the `weights` of errors, (tokens,)."""
        wide = p.new_empty(len(p), len(self.cross), dtype=torch.float64)
        wide[:, :-1], wide[:, -1] = p, 1.0
        q = q.double()
        if weights is not None:
            roots = weights.double().sqrt()[:, None]
            wide *= roots
            q = q * roots
        of_features = scales(wide, last=1)  # the bias's own: features may be much smaller
        self._gram.add(wide, of_features)
        self.cross += rounded(wide.T @ q, of_features, scales(q))
        self.energy += torch.dot(q.flatten(), q.flatten())

    @property
    def tensors(self) -> list[Tensor]:
        """The sums themselves."""
        return [self._gram.sums, self.cross, self.energy]

    @property
    def gram(self) -> Tensor:
        """PᵀP."""
        return self._gram.matrix

    def solve(self, ridge: float, *, bias: bool = True) -> Tensor:
        """The best W, (features + 1) × d; the last row is the bias (zero where `bias` is off).

        `ridge` is relative to the mean of PᵀP's diagonal and does not touch the bias. Normal equations square the
        condition number, which float64 sums and a small ridge make up for; in return no token is kept.
        """
        features = len(self.cross) - 1
        size = features + 1 if bias else features
        solution = torch.zeros_like(self.cross)
        if size == 0:
            return solution
        lifted = self.gram[:size, :size]
        if features:
            lifted.diagonal()[:features] += ridge * lifted.diagonal()[:features].mean()
        solution[:size] = torch.cholesky_solve(self.cross[:size], torch.linalg.cholesky(lifted))
        return solution

    def error(self, solution: Tensor) -> float:
        """‖P W − Q‖² of any W of the solution's shape."""
        fitted = (solution * (self.gram @ solution - 2.0 * self.cross)).sum()
        # Rounding can take the difference of two large sums below zero.
        return max(float(self.energy + fitted), 0.0)
