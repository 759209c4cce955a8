"""What LIAR and the ZipLM-style rival have in common: weights that reproduce each sublayer's own dense output."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from kprune.maths.least_squares import LeastSquares, reconstructing_weights
from kprune.models.sublayer import Sublayer
from kprune.pruning.baselines.feature_moments import feature_grams
from kprune.pruning.baselines.one_shot import OneShot
from kprune.pruning.method import Choice
from kprune.pruning.refit import Fit, solving


class Reconstruction(OneShot):
    """Features are those of the dense model: the target is local, and errors of lower sublayers are not corrected."""

    overrides: ClassVar[dict[str, Any]] = {n: v for n, v in OneShot.overrides.items() if n != "bias"} | {"refit": True}
    fits_bias: ClassVar[bool] = True

    @abstractmethod
    def masks_by_gram(self, grams: Mapping[Sublayer, Tensor]) -> list[Tensor]:
        """Boolean masks of the units that stay, from the mean of f fᵀ of each sublayer, whose last feature is 1."""

    def masks(self) -> list[Tensor]:
        sublayers = self.run.sublayers
        self._grams = dict(zip(sublayers, feature_grams(self.run, sublayers), strict=True))
        self._dense = {sublayer: sublayer.consumer.weight.detach().clone() for sublayer in sublayers}
        return self.masks_by_gram(self._grams)

    def choose(self, step: int) -> Choice:
        choice = super().choose(step)
        self._keep = choice.keep
        return choice

    @property
    def fit(self) -> Fit:
        return self._reconstruct

    def _reconstruct(self, target: Sublayer, problem: LeastSquares, weights: Tensor) -> Tensor:
        """New weights from the dense features; `problem`, which is the stream's, is not used."""
        gram, dense = self._grams.pop(target), self._dense.pop(target)
        keep = self._keep.to(gram.device).repeat_interleave(dense.shape[1] // len(self._keep))
        ridge, bias = self.config.ridge or 0.0, self.fits_bias and target.consumer.bias is not None
        with solving(target, ridge):
            return reconstructing_weights(gram, dense, keep, ridge, bias=bias)
