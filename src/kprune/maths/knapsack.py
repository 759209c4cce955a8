"""A knapsack over sizes: one size of each sublayer, with the least sum of errors within a budget."""

from __future__ import annotations

import torch
from torch import Tensor

BUCKETS = 10_000
"""Equal parts of the budget; a price is rounded up to whole ones, so that the budget is never exceeded."""


def best_sizes(errors: list[Tensor], prices: list[Tensor], budget: float, *, buckets: int = BUCKETS) -> list[int]:
    """The size of each sublayer, by its place in the sublayer's vectors of errors and prices.

    One size of each must fit. Equal sums of errors prefer the first size. `best[b]` is the least sum within b buckets.
    """
    best = torch.zeros(buckets + 1, dtype=torch.float64)
    chosen: list[Tensor] = []
    parts = [(price.double() / budget * buckets - 1e-9).ceil().clamp(min=0).long() for price in prices]
    for error, part in zip(errors, parts, strict=True):
        sums = torch.full((len(error), buckets + 1), torch.inf, dtype=torch.float64)
        for size, (value, needed) in enumerate(zip(error.tolist(), part.tolist(), strict=True)):
            if needed <= buckets:
                sums[size, needed:] = best[: buckets + 1 - needed] + value
        best, place = sums.min(0)
        chosen.append(place)
    if not bool(best.isfinite().any()):
        raise ArithmeticError("no choice of sizes fits the budget")
    left = buckets
    sizes = []
    for place, part in zip(reversed(chosen), reversed(parts), strict=True):
        size = int(place[left])
        sizes.append(size)
        left -= int(part[size])
    return sizes[::-1]
