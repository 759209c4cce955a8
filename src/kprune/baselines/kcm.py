"""KCM (Nova et al. 2023): neurons ranked by how central and how active they are, then Kwon's mask tuning.

No code of it was ever released. How the two scores are combined, by their product, is read from the paper with medium
confidence. Only neurons are removed, so reductions beyond the feed-forward blocks' share are out of reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kprune.baselines.floor import begin, one_by_one, remove_all
from kprune.baselines.kwon import tuning
from kprune.errors import KpruneError
from kprune.observe import forward, observe
from kprune.prune import Draft, Pruner
from kprune.pruned import Progress, Pruned
from kprune.sublayer import Sublayer

WIDTH = 1.0
"""σ of the kernel."""
TOLERANCE = 0.01
"""α: the relative change at which the iteration ends."""
MOST_ROUNDS = 200


def prune(pruner: Pruner, reduction: float, progress: Callable[[Progress], None]) -> Pruned:
    """A smaller copy of the model, all of its heads kept."""
    draft = begin(pruner, reduction, "kcm")
    room = draft.budget - sum(float(price[-1]) for _, price in _of_kind(draft, "attention"))
    if room < 0:
        reachable = 1.0 - (draft.budget - room) / draft.dense
        raise KpruneError(
            f"kcm removes neurons only, and cannot reach a reduction of {reduction}; at most {reachable:.3f}."
        )
    neurons = [sublayer for sublayer, _ in _of_kind(draft, "ffn")]
    activity = mean_features(pruner, draft, neurons)
    found = [
        representatives(sublayer.consumer.weight.double().T).cpu() * scaled(mean)
        for sublayer, mean in zip(neurons, activity, strict=True)
    ]
    chosen = iter(one_by_one(found, [price for _, price in _of_kind(draft, "ffn")], room))
    masks = [
        next(chosen) if sublayer.kind == "ffn" else torch.ones(sublayer.units, dtype=torch.bool)
        for sublayer in draft.sublayers
    ]
    return remove_all(pruner, draft, masks, progress, tuning())


def _of_kind(draft: Draft, kind: str) -> list[tuple[Sublayer, Tensor]]:
    return [pair for pair in zip(draft.sublayers, draft.prices, strict=True) if pair[0].kind == kind]


def representatives(vectors: Tensor) -> Tensor:
    """R2: how much each vector, (n, d), is needed to stand for all: the diagonal of C with K ≈ K C, C ≥ 0.

    K is the Gaussian kernel of the vectors; C ← C ⊙ √(K ⊘ K C) from 1/n until it changes by less than 1 %.
    """
    kernel = torch.exp(-torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist").square() / WIDTH**2)
    weights = torch.full_like(kernel, 1.0 / len(vectors))
    for _ in range(MOST_ROUNDS):
        updated = weights * (kernel / (kernel @ weights)).sqrt()
        change = float((updated - weights).norm() / weights.norm())
        weights = updated
        if change < TOLERANCE:
            break
    return weights.diagonal().clone()


def scaled(values: Tensor) -> Tensor:
    """Values brought to 0..1 within their sublayer."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.ones_like(values)


@torch.no_grad()
def mean_features(pruner: Pruner, draft: Draft, sublayers: Sequence[Sublayer]) -> list[Tensor]:
    """D2 before scaling: the mean of every feature over the sample's real tokens."""
    sums = {sublayer: torch.zeros(sublayer.features, dtype=torch.float64) for sublayer in sublayers}
    for batch in pruner.sample.batches:

        def see(sublayer: Sublayer, features: Tensor) -> None:
            sums[sublayer] += batch.real(features).double().sum(0).cpu()  # noqa: B023  # called within this round

        with observe(sublayers, see):
            forward(draft.student, batch)
    return [sums[sublayer] / pruner.sample.tokens for sublayer in sublayers]
