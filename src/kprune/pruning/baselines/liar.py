"""LIAR ("Reconstruct the Pruned Model without Any Retraining", 2024): least squares to the dense output, no gradients.

The paper takes units by any criterion. Here they are ranked by activation norm: the mean squared norm of what a unit
adds to its sublayer's output, per cost. This is what the reconstruction has to replace, and the sums that the
reconstruction needs give it exactly; the norm of the weights alone is the rival `magnitude`.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from kprune.models.sublayer import Sublayer
from kprune.pruning.baselines.one_shot import select_single_units
from kprune.pruning.baselines.reconstruction import Reconstruction


class LIAR(Reconstruction):
    """Weights and bias reproduce the sublayer's dense output."""

    name = "liar"

    def masks_by_gram(self, grams: Mapping[Sublayer, Tensor]) -> list[Tensor]:
        run = self.run
        scores = [activation_norms(s, grams[s]) / cost for s, cost in zip(run.sublayers, run.costs, strict=True)]
        return select_single_units(scores, run.prices, run.remaining)


def activation_norms(sublayer: Sublayer, gram: Tensor) -> Tensor:
    """Mean over tokens of ‖W_u f_u‖² of every unit, tr(W_u G_uu W_uᵀ); (units,)."""
    units, width = sublayer.units, sublayer.width
    blocks = gram[:-1, :-1].reshape(units, width, units, width).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    by_unit = sublayer.consumer.weight.to(gram).unflatten(1, (units, width)).transpose(0, 1)  # (units, d, width)
    norms: Tensor = ((by_unit @ blocks) * by_unit).sum((1, 2))
    return norms
