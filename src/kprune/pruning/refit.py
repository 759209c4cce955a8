"""Knowledge-preserving weight-tuning: how a consumer's weights are fitted (Equations 10, 11)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from kprune.errors import NotFinite, NotSound
from kprune.maths.least_squares import HalvedLeastSquares, LeastSquares
from kprune.models.sublayer import Sublayer

REFIT_SLACK = (1e-4, 0.05)
"""A refit may raise the sample error by the ridge, clipped to this range."""
MAX_RELATIVE_ERROR = 100.0
"""Stop if ‖T−S‖²/‖T‖² exceeds this; a zero stream has 1."""

Fit = Callable[[Sublayer, LeastSquares, Tensor], Tensor]
"""New weights and bias change of a sublayer, (features + 1) × d, from its problem and its present weights."""


def least_squares_fit(ridge: float) -> Fit:
    """The fit of K-prune: the weights with the least squared error."""

    def fit(target: Sublayer, problem: LeastSquares, weights: Tensor) -> Tensor:
        with solving(target, ridge):
            return problem.solve(ridge, bias=target.consumer.bias is not None)

    return fit


def cross_validated_fit(target: Sublayer, problem: LeastSquares, weights: Tensor) -> Tensor:
    """The present weights, moved toward the least squares solution as far as held-out examples confirm.

    A sample with few tokens per feature does not determine the weights: the refit then follows the sample.
    """
    assert isinstance(problem, HalvedLeastSquares)
    try:
        return problem.cross_validated(weights, bias=target.consumer.bias is not None)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise NotFinite(f"the refit of {target.name} has no solution; set a ridge, or use a larger sample.") from error


@contextmanager
def solving(target: Sublayer, ridge: float) -> Iterator[None]:
    """Within the context, a system of equations without a solution raises an error that names the sublayer."""
    try:
        yield
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise NotFinite(
            f"the refit of {target.name} has no solution with ridge {ridge:g}; use a larger ridge or sample."
        ) from error


def keep_weights(target: Sublayer, problem: LeastSquares, weights: Tensor) -> Tensor:
    """No fit: the weights stay."""
    return weights


def require_improvement(target: Sublayer, before: float, after: float, ridge: float) -> None:
    """Raise if a refit made the error on its own sample larger."""
    least, most = REFIT_SLACK
    if after > 1.01 * before + min(max(ridge, least), most):
        raise NotSound(
            f"the refit of {target.name} increases the error of its stream from {before:.3g} to {after:.3g}; "
            f"use a smaller ridge ({ridge:g} now), or more text."
        )


def require_bounded(target: Sublayer, error: float) -> None:
    """Raise if nothing is left of the teacher's stream."""
    if not error < MAX_RELATIVE_ERROR:  # also true for NaN
        raise NotSound(
            f"the stream diverges: after {target.name} its error is {error:.3g} times the dense model's stream; "
            "remove less, or use more text."
        )
