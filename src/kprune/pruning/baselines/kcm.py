"""KCM (Nova et al. 2023): neurons ranked by how central and how active they are, then Kwon's mask tuning.

The authors released no code. The two scores are combined by their product, as read from the paper with medium
confidence. Only neurons are removed, so a reduction beyond the FFN blocks' share is impossible.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.errors import KpruneError
from kprune.pruning.baselines.feature_moments import feature_moments
from kprune.pruning.baselines.kwon import MaskTuning, require_scipy
from kprune.pruning.baselines.one_shot import select_single_units

WIDTH = 1.0
"""σ of the kernel."""
TOLERANCE = 0.01
"""α: the relative change at which the iteration ends."""
MAX_ROUNDS = 200


class KCM(MaskTuning):
    """All heads stay."""

    name = "kcm"

    def target_model(self) -> tuple[PreTrainedModel, bool]:
        require_scipy(self.name)
        self._require_reachable()
        return super().target_model()

    def masks(self) -> list[Tensor]:
        run = self.run
        prices = [price for sublayer, price in zip(run.sublayers, run.prices, strict=True) if sublayer.kind == "ffn"]
        neurons = [sublayer for sublayer in run.sublayers if sublayer.kind == "ffn"]
        scores = [
            representatives(sublayer.consumer.weight.double().T).cpu() * min_max_scaled(moments.mean)
            for sublayer, moments in zip(neurons, feature_moments(run, neurons), strict=True)
        ]
        chosen = iter(select_single_units(scores, prices, run.remaining - self._cost_of_heads))
        return [
            next(chosen) if sublayer.kind == "ffn" else torch.ones(sublayer.units, dtype=torch.bool)
            for sublayer in run.sublayers
        ]

    @property
    def _cost_of_heads(self) -> float:
        pairs = zip(self.run.sublayers, self.run.prices, strict=True)
        return sum(float(price[-1]) for sublayer, price in pairs if sublayer.kind == "attention")

    def _require_reachable(self) -> None:
        if self.run.remaining < self._cost_of_heads:
            reachable = math.floor(1000 * (1.0 - self._cost_of_heads / self.run.dense)) / 1000
            raise KpruneError(
                f"kcm removes neurons only and cannot reach a reduction of {self.config.reduction}; "
                f"ask for at most {reachable:.3f}."
            )


def representatives(vectors: Tensor) -> Tensor:
    """R2: how much each vector, (n, d), is needed to represent all: the diagonal of C with K ≈ K C, C ≥ 0.

    K is the Gaussian kernel of the vectors; C ← C ⊙ √(K ⊘ K C) from 1/n until it changes by less than 1 %.
    """
    kernel = torch.exp(-torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist").square() / WIDTH**2)
    weights = torch.full_like(kernel, 1.0 / len(vectors))
    for _ in range(MAX_ROUNDS):
        updated = weights * (kernel / (kernel @ weights)).sqrt()
        change = float((updated - weights).norm() / weights.norm())
        weights = updated
        if change < TOLERANCE:
            break
    return weights.diagonal().clone()


def min_max_scaled(values: Tensor) -> Tensor:
    """D2: mean features, scaled to 0..1 within their sublayer."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.ones_like(values)
