"""Sums of outer products, against products of all rows at once, and in another order."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kprune.gram import BLOCK, DIGITS, Gram, rounded

CPU = torch.device("cpu")


def parts_of(size, seed, spread, number=12):
    """Batches of rows whose columns differ in scale by up to 2 ** `spread`, and which differ themselves by up to 32."""
    generator = torch.Generator().manual_seed(seed)
    scales = 2.0 ** (spread * torch.rand(size, generator=generator, dtype=torch.float64))
    for _ in range(number):
        rows = torch.randn(13, size, generator=generator, dtype=torch.float64)
        yield 32.0 ** torch.rand((), generator=generator, dtype=torch.float64) * scales * rows


@pytest.mark.parametrize("size", [1, BLOCK, 500])
def test_sums_are_symmetric_whatever_their_blocks_and_add_up(size):
    whole = Gram(size, CPU)
    for part in parts_of(size, 0, 0):
        whole.add(part)
    rows = torch.cat(list(parts_of(size, 0, 0)))
    expected = rows.T @ rows
    torch.testing.assert_close(whole.matrix, expected, rtol=0, atol=12 * 2.0**-DIGITS * float(expected.max()))
    assert torch.equal(whole.matrix, whole.matrix.T)


@given(
    size=st.sampled_from([1, 5, BLOCK + 8]),
    order=st.permutations(range(12)),
    at=st.integers(0, 12),
    seed=st.integers(0, 1000),
    spread=st.integers(0, 30),
)
def test_neither_order_nor_processes_change_a_digit(size, order, at, seed, spread):
    parts = list(parts_of(size, seed, spread))
    one, first, second = (Gram(size, CPU) for _ in range(3))
    for part in parts:
        one.add(part)
    for number in order[:at]:
        first.add(parts[number])
    for number in order[at:]:
        second.add(parts[number])
    assert torch.equal(one.sums, first.sums + second.sums)


def test_plain_sums_would_differ():
    """What rounding is for: the same sums, without it."""
    products = [part.T @ part for part in parts_of(50, 0, 0)]
    assert not torch.equal(sum(products), sum(reversed(products)))


@given(value=st.floats(-1.0, 1.0), largest=st.floats(1.0, 1e30))
def test_rounding_is_to_multiples_near_by(value, largest):
    largest = torch.tensor(largest, dtype=torch.float64)
    exact = value * largest
    found = rounded(exact.clone(), largest)
    step = 2.0 ** (torch.frexp(largest).exponent - DIGITS)
    assert abs(found - exact) <= step / 2
    assert found / step == torch.round(found / step)


def test_of_float32_only_the_products_are_rounded():
    rows = torch.randn(40, 30)
    sums = Gram(30, CPU, torch.float32)
    for _ in range(3):
        sums.add(rows)
    assert sums.sums.dtype == torch.float64
    assert torch.equal(sums.matrix.triu(), 3.0 * (rows.T @ rows).double().triu())
