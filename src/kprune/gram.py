"""Sums of outer products: all that least squares needs of a sample."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 192
"""Rows summed at a time: the products below the diagonal, which symmetry gives, are spared."""


class Gram:
    """Σ x xᵀ over all rows added so far; sums of two parts of a sample add up to the sum of the whole."""

    def __init__(self, size: int, device: torch.device, dtype: torch.dtype = torch.float64) -> None:
        self.sums = torch.zeros(size, size, dtype=dtype, device=device)
        """Right on and above the diagonal."""

    def add(self, rows: Tensor) -> None:
        """Add rows, (number, size)."""
        rows = rows.to(self.sums.dtype)
        for start in range(0, len(self.sums), BLOCK):
            block = slice(start, start + BLOCK)
            self.sums[block, start:].addmm_(rows[:, block].T, rows[:, start:])

    @property
    def matrix(self) -> Tensor:
        """(size, size); only blocks on and above its diagonal are summed."""
        return self.sums.triu() + self.sums.triu(1).T
