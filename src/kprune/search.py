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


def search_groups(scores: list[Tensor], prices: list[Tensor], sizes: list[int], budget: float) -> list[Tensor]:
    """The same over several sublayers, in groups of a size of each sublayer's own; a mask over units for each.

    A sublayer's units, best first, stay or go by the `size`, so that its number is a multiple (but for a last group
    that is smaller). A group has its members' mean score. `prices` hold what 0, 1, 2, … units of a sublayer cost
    together: the more are kept already, the next one's price may differ.
    """
    scores = [values.cpu() for values in scores]  # where the prices are
    groups = [groups_of(values, size) for values, size in zip(scores, sizes, strict=True)]
    means, costs = [], []
    for values, group, price, size in zip(scores, groups, prices, sizes, strict=True):
        members = torch.bincount(group).to(values.dtype)
        means.append(torch.zeros_like(members).index_add(0, group, values) / members)
        costs.append(price[_ends(len(values), size)].diff())
    kept = search(torch.cat(means), torch.cat(costs), budget).split([len(each) for each in means])
    return [keep[group] for keep, group in zip(kept, groups, strict=True)]


def groups_of(scores: Tensor, size: int) -> Tensor:
    """Every unit's group: 0 for the `size` best, 1 for the next, and so on; equal scores in order of position."""
    order = torch.argsort(scores, descending=True, stable=True)
    group = torch.empty_like(order)
    group[order] = torch.arange(len(order), device=order.device) // size
    return group


def _ends(units: int, size: int) -> Tensor:
    """Numbers of units that whole groups make: 0, size, 2·size, … and all."""
    return torch.cat([torch.arange(0, units, size), torch.tensor([units])])


def best_share(scores: Tensor, share: float) -> Tensor:
    """Boolean mask of the best `share` of one sublayer's units, rounded down: an ablation of the search."""
    return groups_of(scores, 1) < int(share * len(scores) + 1e-9)


def score(
    predictive: Tensor, representational: Tensor, cost: float, *, rep_weight: float, unit_weight: float = 1.0
) -> Tensor:
    """Importance per FLOP, Z = μ (K_pred + λ K_rep) / F (Equation 9); `unit_weight` μ is 1 for neurons."""
    return unit_weight * (predictive + rep_weight * representational) / cost
