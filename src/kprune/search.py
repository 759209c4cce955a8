"""Which units stay: knowledge-preserving mask search (Algorithm 1)."""

import torch
from torch import Tensor


def search(scores: Tensor, costs: Tensor, budget: float) -> Tensor:
    """Boolean mask of the units that stay: the longest best-first run whose cost fits the budget (Algorithm 1).

    `scores` and `costs` are vectors over units. The run ends at the first unit that does not fit, so what is spent is
    below the budget by less than that unit's cost. Equal scores are taken in order of position: the paper's threshold
    would drop all of them together, and could then miss the budget by any amount.
    """
    order = torch.argsort(scores, descending=True, stable=True)
    spent = costs[order].double().cumsum(0)
    keep = torch.zeros_like(scores, dtype=torch.bool)
    keep[order[spent <= budget]] = True
    return keep


def best_share(scores: Tensor, share: float) -> Tensor:
    """Boolean mask of the best `share` of one sublayer's units, rounded down: an ablation of the search."""
    keep = torch.zeros_like(scores, dtype=torch.bool)
    keep[torch.argsort(scores, descending=True, stable=True)[: int(share * len(scores) + 1e-9)]] = True
    return keep


def score(
    predictive: Tensor, representational: Tensor, cost: float, *, rep_weight: float, unit_weight: float = 1.0
) -> Tensor:
    """Importance per FLOP, Z = μ (K_pred + λ K_rep) / F (Equation 9); `unit_weight` μ is 1 for neurons."""
    return unit_weight * (predictive + rep_weight * representational) / cost
