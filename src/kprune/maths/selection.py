"""Selection of the units that stay: knowledge-preserving mask search (Algorithm 1)."""

import torch
from torch import Tensor


def select_units(scores: Tensor, costs: Tensor, budget: float) -> Tensor:
    """Boolean mask of the units that stay: the longest best-first run whose cost fits the budget (Algorithm 1).

    `scores` and `costs` are vectors over units. The run ends at the first unit that does not fit, so the cost is
    below the budget by less than that unit's cost. Equal scores are taken in order of position: the paper's threshold
    would drop all of them together, and could miss the budget by any amount.
    """
    order = torch.argsort(scores, descending=True, stable=True)
    spent = costs[order].double().cumsum(0)
    keep = torch.zeros_like(scores, dtype=torch.bool)
    keep[order[spent <= budget]] = True
    return keep


def select_groups(scores: list[Tensor], prices: list[Tensor], sizes: list[int], budget: float) -> list[Tensor]:
    """`select_units` over several sublayers, in groups of each sublayer's own size; a mask over units per sublayer.

    A sublayer's units, best first, stay or go in groups of `size`, so that the kept number is a multiple of it (the
    last group may be smaller). A group's score is the mean of its members'. `prices` are the costs of 0, 1, 2, … units
    of a sublayer together: the price of one more unit may depend on how many are kept.
    """
    scores = [values.cpu() for values in scores]  # prices are on the CPU
    groups = [groups_of(values, size) for values, size in zip(scores, sizes, strict=True)]
    means, costs = [], []
    for values, group, price, size in zip(scores, groups, prices, sizes, strict=True):
        members = torch.bincount(group).to(values.dtype)
        means.append(torch.zeros_like(members).index_add(0, group, values) / members)
        costs.append(price[_group_ends(len(values), size)].diff())
    kept = select_units(torch.cat(means), torch.cat(costs), budget).split([len(each) for each in means])
    return [keep[group] for keep, group in zip(kept, groups, strict=True)]


def kept_by_count(knowledge: list[Tensor], counts: Tensor) -> Tensor:
    """What the best 0, 1, … units of every sublayer keep together, at each of the counts; float64."""
    kept = [torch.cat([each.new_zeros(1), each.sort(descending=True).values.cumsum(0)]) for each in knowledge]
    return torch.stack([each.double().cpu()[counts] for each in kept]).sum(0)


def best_pair(kept: tuple[Tensor, Tensor], costs: tuple[Tensor, Tensor], budget: float) -> tuple[int, int] | None:
    """The pair of entries with the largest `kept[0][i] + kept[1][j]` whose costs fit the budget together.

    None: no pair fits. Of equal pairs, the first one in order of i, then of j.
    """
    values = kept[0][:, None] + kept[1][None, :]
    fits = costs[0][:, None] + costs[1][None, :] <= budget
    if not bool(fits.any()):
        return None
    best = int(values.masked_fill(~fits, -torch.inf).argmax())
    return best // values.shape[1], best % values.shape[1]


def groups_of(scores: Tensor, size: int) -> Tensor:
    """Group of every unit: 0 for the `size` best, 1 for the next, and so on; equal scores in order of position."""
    order = torch.argsort(scores, descending=True, stable=True)
    group = torch.empty_like(order)
    group[order] = torch.arange(len(order), device=order.device) // size
    return group


def _group_ends(units: int, size: int) -> Tensor:
    """Numbers of units after each whole group: 0, size, 2·size, … and all."""
    return torch.cat([torch.arange(0, units, size), torch.tensor([units])])


def best_share(scores: Tensor, share: float) -> Tensor:
    """Boolean mask of the best `share` of one sublayer's units, rounded down (an ablation of the search)."""
    return groups_of(scores, 1) < int(share * len(scores) + 1e-9)


def even_shares(prices: list[Tensor], is_head: list[bool], budget: float) -> tuple[float, float]:
    """The shares of heads and of neurons to keep in every sublayer.

    A sublayer has few heads, so the two shares can hardly be equal within a budget. For each share of heads, neurons
    take what is left of the budget; the pair of shares that differ least is chosen.
    """
    heads, head_costs = _shares_and_costs([p for p, head in zip(prices, is_head, strict=True) if head])
    neurons, neuron_costs = _shares_and_costs([p for p, head in zip(prices, is_head, strict=True) if not head])
    places = torch.searchsorted(neuron_costs, budget - head_costs, right=True) - 1
    differences = (heads - neurons[places]).abs().masked_fill(places < 0, torch.inf)
    best = len(heads) - 1 - int(differences.flip(0).argmin())  # of equal ones the one with most heads
    return float(heads[best]), float(neurons[places[best]])


def _shares_and_costs(prices: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The shares that sublayers can keep, ascending, and the cost of each; without sublayers 1, which costs nothing."""
    units = {len(price) - 1 for price in prices}
    shares = torch.tensor(sorted({kept / of for of in units for kept in range(of + 1)}) or [1.0], dtype=torch.float64)
    costs = torch.zeros_like(shares)
    for price in prices:
        costs += price[(shares * (len(price) - 1) + 1e-9).long()]
    return shares, costs
