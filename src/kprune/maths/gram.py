"""Sums of outer products, which are all that least squares needs of a sample.

The last digits of a floating-point sum depend on the order of its terms, and a solve can amplify them. Products that
are rounded to fewer digits than the sum has add up exactly: several processes get the same sums as one.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 192
"""Rows of the matrix per product; blocks below the diagonal follow from symmetry and are not computed."""
DIGITS = 36
"""Binary digits kept of a product (float64 has 53): a sum is exact while it is below 2¹⁷ times its terms' scale."""


def scales(columns: Tensor, last: int = 0) -> Tensor:
    """Powers of two above the norms of columns, (size,): one shared by all columns except the `last` ones.

    The last columns have their own. A scale per column would round better, but a feature's size varies between batches.
    """
    norms = columns.square().sum(0).sqrt()
    shared = norms[: len(norms) - last]
    if len(shared):
        shared.copy_(shared.max())
    return torch.ldexp(torch.ones_like(norms), torch.frexp(norms).exponent)


def rounded(products: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Round float64 products of columns, (len(left), len(right)), to multiples of 2⁻³⁶ of their scales, in place."""
    # Adding a number this large drops all digits below these multiples; 1.5 makes it work for either sign.
    shift = left[:, None] * (1.5 * 2.0 ** (52 - DIGITS) * right)
    return products.add_(shift).sub_(shift)


def column_sums(rows: Tensor) -> Tensor:
    """Σ of rows, (number, size), rounded: sums over parts of a sample do not depend on their order.

    Each column has its own scale, so that a small column is not rounded away beside a large one.
    """
    rows = rows.double()
    ones = rows.new_ones(len(rows), 1)
    return rounded(ones.T @ rows, scales(ones), scales(rows, last=rows.shape[1]))[0]


class Gram:
    """Σ x xᵀ over all rows added so far."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._size = size
        heights = [min(BLOCK, size - start) for start in range(0, size, BLOCK)]
        widths = range(size, 0, -BLOCK)
        areas = [height * width for height, width in zip(heights, widths, strict=True)]
        self.sums = torch.zeros(sum(areas), dtype=torch.float64, device=device)
        """Blocks of rows, each from the diagonal on, one after another."""
        parts = self.sums.split(areas)
        self._blocks = [part.view(height, -1) for part, height in zip(parts, heights, strict=True)]

    def add(self, rows: Tensor, scales: Tensor | None = None) -> None:
        """Add rows, (number, size). Products are rounded if the columns' scales are given.

        Products of float32 rows have 24 digits; their float64 sums hardly need rounding.
        """
        buffer = rows.new_empty(max(block.numel() for block in self._blocks))
        for number, block in enumerate(self._blocks):
            rest = rows[:, number * BLOCK :]
            products = torch.mm(rest[:, : len(block)].T, rest, out=buffer[: block.numel()].view_as(block))
            if scales is not None:
                rest_scales = scales[number * BLOCK :]
                rounded(products, rest_scales[: len(block)], rest_scales)
            block += products

    @property
    def matrix(self) -> Tensor:
        """Σ x xᵀ, (size, size)."""
        whole = self.sums.new_empty(self._size, self._size)
        for number, block in enumerate(self._blocks):
            start, end = number * BLOCK, number * BLOCK + len(block)
            whole[start:, start:end] = block.T
            whole[start:end, start:] = block
            diagonal = whole[start:end, start:end]
            diagonal.copy_(diagonal.triu() + diagonal.triu(1).T)
        return whole
