"""Sums of outer products: all that least squares needs of a sample.

Sums of floating-point numbers depend on their order in the last digits, and what is solved from them may make much of
that. Products that were rounded to fewer digits than a sum has add up exactly: several processes come to the sums of
one.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 192
"""Rows of the matrix summed at a time: the products below the diagonal, which symmetry gives, are spared."""
DIGITS = 36
"""Binary digits of a product, of 53 that float64 has: a sum is exact while it is below 2¹⁷ of any addend's scale."""


def scales(columns: Tensor, last: int = 0) -> Tensor:
    """Powers of two above the norms of columns, (size,): one for all of them, but for the `last`, which have their own.

    One for each would round each better, but a feature may be silent in one batch and loud in the next.
    """
    norms = columns.square().sum(0).sqrt()
    shared = norms[: len(norms) - last]
    if len(shared):
        shared.copy_(shared.max())
    return torch.ldexp(torch.ones_like(norms), torch.frexp(norms).exponent)


def rounded(products: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Round float64 products of columns, (len(left), len(right)), to multiples of 2⁻³⁶ of their scales, in place."""
    # A sum with so large a number has no digits below these multiples; 1.5, since then it is as large with either sign.
    shift = left[:, None] * (1.5 * 2.0 ** (52 - DIGITS) * right)
    return products.add_(shift).sub_(shift)


class Gram:
    """Σ x xᵀ over all rows added so far; sums of two parts of a sample add up to the sum of the whole."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._size = size
        heights = [min(BLOCK, size - start) for start in range(0, size, BLOCK)]
        widths = range(size, 0, -BLOCK)
        areas = [height * width for height, width in zip(heights, widths, strict=True)]
        self.sums = torch.zeros(sum(areas), dtype=torch.float64, device=device)
        """Blocks of rows from the diagonal on, one after the other."""
        parts = self.sums.split(areas)
        self._blocks = [part.view(height, -1) for part, height in zip(parts, heights, strict=True)]

    def add(self, rows: Tensor, scales: Tensor | None = None) -> None:
        """Add rows, (number, size). Products are rounded where the columns' scales are given.

        Those of float32 rows have 24 digits: their sums hardly need it.
        """
        room = rows.new_empty(max(block.numel() for block in self._blocks))
        for number, block in enumerate(self._blocks):
            rest = rows[:, number * BLOCK :]
            products = torch.mm(rest[:, : len(block)].T, rest, out=room[: block.numel()].view_as(block))
            if scales is not None:
                of_rest = scales[number * BLOCK :]
                rounded(products, of_rest[: len(block)], of_rest)
            block += products

    @property
    def matrix(self) -> Tensor:
        """Σ x xᵀ, (size, size)."""
        found = self.sums.new_empty(self._size, self._size)
        for number, block in enumerate(self._blocks):
            start, end = number * BLOCK, number * BLOCK + len(block)
            found[start:, start:end] = block.T
            found[start:end, start:] = block
            own = found[start:end, start:end]
            own.copy_(own.triu() + own.triu(1).T)
        return found
