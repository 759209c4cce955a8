"""Sums of outer products: all that least squares needs of a sample.

Sums of floating-point numbers depend on their order in the last digits, and what is solved from them may make much of
that. So what is added has few enough digits that float64 sums of it are exact, or nearly: several processes come to the
sums of one.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 192
"""Rows summed at a time: the products below the diagonal, which symmetry gives, are spared."""
DIGITS = 34
"""Binary digits of a product, of 53 that a sum has: the others hold what batches differ by, and what they add up to."""


def rounded(products: Tensor, largest: Tensor) -> Tensor:
    """Round products in float64 to multiples of 2⁻³⁴ of a bound on them, in place; sums of these are exact."""
    _, exponent = torch.frexp(largest)
    shift = torch.ldexp(torch.full_like(largest, 1.5), exponent + 52 - DIGITS)
    return products.add_(shift).sub_(shift)  # a sum as large as the shift has no digits below the multiples


class Gram:
    """Σ x xᵀ over all rows added so far; sums of two parts of a sample add up to the sum of the whole.

    Rows are multiplied in the dtype given. Of float32, products have 24 digits, and are summed as they are.
    """

    def __init__(self, size: int, device: torch.device, dtype: torch.dtype = torch.float64) -> None:
        self._size, self._dtype = size, dtype
        heights = [min(BLOCK, size - start) for start in range(0, size, BLOCK)]
        widths = range(size, 0, -BLOCK)
        areas = [height * width for height, width in zip(heights, widths, strict=True)]
        self.sums = torch.zeros(sum(areas), dtype=torch.float64, device=device)
        """Blocks of rows from the diagonal on, one after the other."""
        parts = self.sums.split(areas)
        self._blocks = [part.view(height, -1) for part, height in zip(parts, heights, strict=True)]

    def add(self, rows: Tensor) -> None:
        """Add rows, (number, size)."""
        rows = rows.to(self._dtype)
        largest = rows.square().sum(0).max() if self._dtype == torch.float64 else None
        for number, block in enumerate(self._blocks):
            rest = rows[:, number * BLOCK :]
            products = rest[:, : len(block)].T @ rest
            block += products if largest is None else rounded(products, largest)

    @property
    def matrix(self) -> Tensor:
        """(size, size)"""
        found = self.sums.new_empty(self._size, self._size)
        for number, block in enumerate(self._blocks):
            start, end = number * BLOCK, number * BLOCK + len(block)
            found[start:, start:end] = block.T
            found[start:end, start:] = block
            own = found[start:end, start:end]
            own.copy_(own.triu() + own.triu(1).T)
        return found
