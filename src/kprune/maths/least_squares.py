"""Knowledge-preserving weight-tuning (Equations 10, 11): least squares from running sums."""

from __future__ import annotations

import torch
from torch import Tensor

from kprune.maths.gram import DIGITS, Gram, column_sums, rounded, scales

RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Ridges that cross-validation tries, relative to the diagonal of PᵀP."""
FIRST_RIDGE = 0.1
"""The ridge that it tries first."""
JUDGING_OUTPUTS = 64
"""At least so many outputs choose the ridge, evenly spread, if there are as many: they estimate the mean of all."""
ROUNDING = 2.0 ** (1 - DIGITS)
"""Rounding of an entry of PᵀP, relative to its largest one; a norm of the roundings has √features times as much."""


class LeastSquares:
    """min ‖P W − Q‖² over all tokens added so far, held as PᵀP, PᵀQ and sums of Q²; tokens may have weights.

    P (tokens × features) are the student's kept features; Q (tokens × d) is the difference its stream should make up.
    Memory is features², whatever the number of tokens. A last column of ones belongs to the bias, so one solution
    contains both.
    """

    def __init__(self, features: int, outputs: int, device: torch.device) -> None:
        self._gram = Gram(features + 1, device)
        self.cross = torch.zeros(features + 1, outputs, dtype=torch.float64, device=device)
        self.energy = torch.zeros(outputs, dtype=torch.float64, device=device)

    def add(self, p: Tensor, q: Tensor, weights: Tensor | None = None) -> None:
        """Add tokens: `p`, (tokens, features); `q`, (tokens, d); `weights` of the squared errors, (tokens,)."""
        wide = p.new_empty(len(p), len(self.cross), dtype=torch.float64)
        wide[:, :-1], wide[:, -1] = p, 1.0
        q = q.double()
        if weights is not None:
            roots = weights.double().sqrt()[:, None]
            wide *= roots
            q = q * roots
        feature_scales = scales(wide, last=1)  # the bias has its own: features may be much smaller
        self._gram.add(wide, feature_scales)
        self.cross += rounded(wide.T @ q, feature_scales, scales(q))
        self.energy += column_sums(q.square())

    @property
    def tensors(self) -> list[Tensor]:
        """The sums, to be all-reduced."""
        return [self._gram.sums, self.cross, self.energy]

    @property
    def gram(self) -> Tensor:
        """PᵀP."""
        return self._gram.matrix

    def solve(self, ridge: float, *, bias: bool = True) -> Tensor:
        """The best W, (features + 1) × d; the last row is the bias (zero if `bias` is off).

        `ridge` is relative to the mean of PᵀP's diagonal and does not apply to the bias. Normal equations square the
        condition number; float64 sums and a small ridge compensate, and no token has to be stored.
        """
        features = len(self.cross) - 1
        size = features + 1 if bias else features
        solution = torch.zeros_like(self.cross)
        if size == 0:
            return solution
        shifted = self.gram[:size, :size]
        if features:
            shifted.diagonal()[:features] += ridge * shifted.diagonal()[:features].mean()
        solution[:size] = torch.cholesky_solve(self.cross[:size], torch.linalg.cholesky(shifted))
        return solution

    def error(self, solution: Tensor) -> float:
        """‖P W − Q‖² of any W of the solution's shape."""
        fitted = (solution * (self.gram @ solution - 2.0 * self.cross)).sum()
        # Rounding can make the difference of two large sums negative.
        return max(float(self.energy.sum() + fitted), 0.0)

    def solve_toward(self, prior: Tensor, ridge: float, *, bias: bool = True) -> Tensor:
        """The W with the least ‖P W − Q‖² + ridge · Σ_j (PᵀP)_jj ‖W_j − prior_j‖²; all have the shape of `solve`'s."""
        return self.correction_of(prior, bias=bias).solve(ridge)

    def correction_of(self, prior: Tensor, *, bias: bool, outputs: slice = slice(None)) -> Correction:
        """The same problem for the change of given weights, of all outputs or of some.

        The last row of `prior`, a bias, counts as zero.
        """
        size = len(self.cross) if bias else len(self.cross) - 1
        prior = torch.cat([prior[:-1], torch.zeros_like(prior[-1:])])[:, outputs]
        gram, cross = self.gram, self.cross[:, outputs]
        residual = cross - gram @ prior
        energy = self.energy[outputs] - (prior * (cross + residual)).sum(0)
        return Correction(prior, gram[:size, :size], residual[:size], energy)


class Correction:
    """A problem of least squares for the change Δ of given weights; many ridges can be tried at little cost.

    `prior` has the given weights, (features + 1) × d. `gram` is PᵀP, without its last row and column if there is no
    bias. `residual` is Pᵀ(Q − P prior), with as many rows, and `energy` ‖Q − P prior‖² of each output, (d,).
    """

    def __init__(self, prior: Tensor, gram: Tensor, residual: Tensor, energy: Tensor) -> None:
        self.prior, self.gram, self.residual, self.energy = prior, gram, residual, energy

    def change(self, ridge: float) -> Tensor:
        """The Δ with the least ‖P (prior + Δ) − Q‖² + ridge · Σ_j (PᵀP)_jj ‖Δ_j‖²; (rows of `gram`) × d.

        Each feature has its own scale, so that a feature with few large values does not set the ridge of the others.
        The ridge is at least as large as the rounding of the sums, which would else be fitted where features are small.
        """
        if not len(self.gram):
            return self.residual
        features = len(self.prior) - 1
        shifted = self.gram.clone()
        diagonal = shifted.diagonal()[:features]
        if features:
            noise = ROUNDING * features**0.5 * float(diagonal.max())
            diagonal += (ridge * diagonal).clamp(min=max(noise, torch.finfo(torch.float32).tiny))
        return torch.cholesky_solve(self.residual, torch.linalg.cholesky(shifted))

    def errors(self, change: Tensor) -> Tensor:
        """‖Q − P (prior + Δ)‖² of each output, (d,)."""
        errors: Tensor = self.energy + (change * (self.gram @ change - 2.0 * self.residual)).sum(0)
        return errors

    def solve(self, ridge: float) -> Tensor:
        """prior + Δ."""
        solution = self.prior.clone()
        solution[: len(self.gram)] += self.change(ridge)
        return solution


class HalvedLeastSquares(LeastSquares):
    """The same problem with its sums kept per half of the examples, so that one half can judge a fit to the other."""

    def __init__(self, features: int, outputs: int, device: torch.device) -> None:
        self.halves = (LeastSquares(features, outputs, device), LeastSquares(features, outputs, device))

    def add(self, p: Tensor, q: Tensor, weights: Tensor | None = None, half: Tensor | None = None) -> None:
        """Add tokens; `half` is 0 or 1 for each of them, (tokens,). None: all belong to half 0."""
        for number, problem in enumerate(self.halves):
            rows = slice(None) if half is None else (half == number).nonzero().squeeze(1)
            if half is not None or number == 0:
                problem.add(p[rows], q[rows], None if weights is None else weights[rows])

    @property
    def tensors(self) -> list[Tensor]:
        """The sums, to be all-reduced."""
        return [tensor for half in self.halves for tensor in half.tensors]

    @property
    def gram(self) -> Tensor:
        """PᵀP of both halves."""
        return self.halves[0].gram + self.halves[1].gram

    @property
    def cross(self) -> Tensor:  # type: ignore[override]
        """PᵀQ of both halves."""
        return self.halves[0].cross + self.halves[1].cross

    @property
    def energy(self) -> Tensor:  # type: ignore[override]
        """Sums of Q² of both halves."""
        return self.halves[0].energy + self.halves[1].energy

    def held_out_error(self, prior: Tensor, ridge: float, *, bias: bool) -> float:
        """What is left of an output's error on one half after a fit to the other half, as a share; mean over outputs.

        Some outputs stand for all where there are many. A sum of errors would be that of the few outputs with the
        largest values, which want another ridge.
        """
        return _held_out_error(self._judging_corrections(prior, bias=bias), ridge)

    def best_ridge(self, prior: Tensor, *, bias: bool) -> float:
        """The ridge of `RIDGES` with the least held-out error, found by descent from `FIRST_RIDGE`."""
        if not all(half.gram.any() for half in self.halves):
            return FIRST_RIDGE  # nothing can judge
        halves = self._judging_corrections(prior, bias=bias)
        number = RIDGES.index(FIRST_RIDGE)
        least = _held_out_error(halves, FIRST_RIDGE)
        while least == torch.inf and number + 1 < len(RIDGES):
            number += 1
            least = _held_out_error(halves, RIDGES[number])
        for step in (1, -1):
            while 0 <= number + step < len(RIDGES):
                error = _held_out_error(halves, RIDGES[number + step])
                if error >= least:
                    break
                number, least = number + step, error
            if RIDGES[number] != FIRST_RIDGE:
                break
        return RIDGES[number]

    def _judging_corrections(self, prior: Tensor, *, bias: bool) -> list[Correction]:
        """The problems of both halves, for the outputs that choose the ridge."""
        outputs = slice(None, None, max(1, prior.shape[1] // JUDGING_OUTPUTS))
        return [half.correction_of(prior, bias=bias, outputs=outputs) for half in self.halves]

    def cross_validated(self, prior: Tensor, *, bias: bool = True) -> Tensor:
        """The solution toward `prior` with the best ridge; half of it, since all tokens have twice a half's sums.

        If rounded sums leave it without a solution, the next larger ridge is taken.
        """
        best = self.best_ridge(prior, bias=bias)
        whole = self.correction_of(prior, bias=bias)
        for ridge in RIDGES[RIDGES.index(best) : -1]:
            try:
                return whole.solve(0.5 * ridge)
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                continue
        return whole.solve(0.5 * RIDGES[-1])


def _held_out_error(halves: list[Correction], ridge: float) -> float:
    """What is left of the outputs' errors when each half judges the fit to the other, mean share; infinite: no fit."""
    try:
        left = [judge.errors(fitted.change(ridge)) for fitted, judge in (halves, halves[::-1])]
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # rounded sums need a larger ridge
        return torch.inf
    before = halves[0].energy + halves[1].energy
    least = ROUNDING * before.max() + torch.finfo(torch.float32).tiny
    return float((sum(left) / before.clamp(min=least)).mean())


def reconstructing_weights(gram: Tensor, weight: Tensor, keep: Tensor, ridge: float, *, bias: bool) -> Tensor:
    """Weights of the kept features that best reproduce the output of all, and a bias change; (kept + 1, d).

    `gram` is the mean of f fᵀ, its last feature 1; `weight` is (d, features); `keep` masks features. The solution X
    minimises tr((X − W)(G + ρ)(X − W)ᵀ) where X is 0 at removed features: W_K + (G_KK + ρ)⁻¹ G_KR W_R. `ridge` is
    relative to the mean diagonal and holds X near W; it does not apply to the bias. Without `bias`, its change is 0.
    """
    features = gram.diagonal()[:-1]
    kept, removed = (mask.nonzero().squeeze(1) for mask in (keep, ~keep))
    fitted = torch.cat([kept, kept.new_tensor([len(features)])]) if bias else kept
    block = gram[fitted][:, fitted]
    block.diagonal()[: len(kept)] += ridge * features.mean()
    weight = weight.to(gram)
    missing = gram[fitted][:, removed] @ weight[:, removed].T
    solution = torch.cat([weight[:, kept].T, gram.new_zeros(1, len(weight))])
    solution[: len(fitted)] += torch.cholesky_solve(missing, torch.linalg.cholesky(block))
    return solution
