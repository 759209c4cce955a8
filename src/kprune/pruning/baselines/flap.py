"""FLAP (An et al., "Fluctuation-based Adaptive Structured Pruning for Large Language Models", AAAI 2024).

Units whose features vary little are removed over the whole model, and a bias replaces their mean. The authors' code
also squares the scores of attention before it standardises them; here they are not squared.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from kprune.maths.least_squares import LeastSquares
from kprune.models.sublayer import Sublayer
from kprune.pruning.baselines.feature_moments import Moments, feature_moments
from kprune.pruning.baselines.one_shot import OneShot, select_single_units
from kprune.pruning.refit import Fit


class FLAP(OneShot):
    """Consumers without a bias get one."""

    name = "flap"
    overrides: ClassVar[dict[str, Any]] = {**OneShot.overrides, "bias": True}

    def masks(self) -> list[Tensor]:
        run = self.run
        moments = feature_moments(run, run.sublayers)
        scores = [fluctuations(*each) for each in zip(run.sublayers, moments, strict=True)]
        masks = select_single_units(scores, run.prices, run.remaining)
        self._added = {s: mean_output(s, m, ~keep) for s, m, keep in zip(run.sublayers, moments, masks, strict=True)}
        return masks

    @property
    def fit(self) -> Fit:
        return self._compensate

    def _compensate(self, target: Sublayer, problem: LeastSquares, weights: Tensor) -> Tensor:
        """The present weights, with the removed units' mean output as the change of the bias."""
        return torch.cat([weights[:-1], self._added[target].to(weights)[None]])


def fluctuations(sublayer: Sublayer, moments: Moments) -> Tensor:
    """Score of every unit, (units,): the mean over its columns of variance times ‖column‖², standardised.

    Scores of columns get mean 0 and deviation 1 within their sublayer, before the mean over a head is taken.
    """
    columns = moments.variance * sublayer.consumer.weight.double().square().sum(0).cpu()
    centred = columns - columns.mean()
    deviation = (centred.square().sum() / max(len(columns) - 1, 1)).sqrt()
    standard = centred / deviation if deviation > 0 else centred
    return standard.view(sublayer.units, -1).mean(1)


def mean_output(sublayer: Sublayer, moments: Moments, units: Tensor) -> Tensor:
    """What the given units, a boolean mask, add to the consumer's output on average; (d,)."""
    columns = units.repeat_interleave(sublayer.width)
    mean = (moments.mean * columns).to(sublayer.consumer.weight.device)
    return sublayer.consumer.weight.double() @ mean
