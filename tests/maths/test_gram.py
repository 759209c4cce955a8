"""Sums of outer products, against products of all rows at once, and in another order."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kprune.maths import gram
from kprune.maths.gram import BLOCK, DIGITS, Gram, column_sums, rounded, scales
from kprune.maths.least_squares import LeastSquares

CPU = torch.device("cpu")


def parts_of(size, seed, spread, number=12):
    """Batches of rows whose columns differ in scale by up to 2 ** `spread`, and which differ themselves by up to 32."""
    generator = torch.Generator().manual_seed(seed)
    powers = 2.0 ** (spread * torch.rand(size, generator=generator, dtype=torch.float64))
    for place in range(number):
        rows = torch.randn(5 + place, size, generator=generator, dtype=torch.float64)
        yield 32.0 ** torch.rand((), generator=generator, dtype=torch.float64) * powers * rows


@pytest.mark.parametrize("size", [1, BLOCK, 500])
def test_sums_are_symmetric_whatever_their_blocks_and_add_up(size):
    plain, exact = Gram(size, CPU), Gram(size, CPU)
    for part in parts_of(size, 0, 0):
        plain.add(part)
        exact.add(part, scales(part))
    rows = torch.cat(list(parts_of(size, 0, 0)))
    expected = rows.T @ rows
    torch.testing.assert_close(plain.matrix, expected)
    torch.testing.assert_close(exact.matrix, expected, rtol=0, atol=24 * 2.0**-DIGITS * float(expected.max()))
    for sums in (plain, exact):
        assert torch.equal(sums.matrix, sums.matrix.T)


@given(
    features=st.sampled_from([0, 1, 5, BLOCK + 8]),
    order=st.permutations(range(12)),
    at=st.integers(0, 12),
    seed=st.integers(0, 1000),
    spread=st.integers(-30, 30),
    weighted=st.booleans(),
)
def test_neither_order_nor_processes_change_a_digit(features, order, at, seed, spread, weighted):
    parts = list(zip(parts_of(features, seed, spread), parts_of(7, seed + 1, spread), strict=True))
    one, first, second = (LeastSquares(features, 7, CPU) for _ in range(3))

    def add(sums, number):
        p, q = parts[number]
        sums.add(p, q, 1.0 + torch.arange(len(p)) / 10 if weighted else None)

    for number in range(12):
        add(one, number)
    for number in order[:at]:
        add(first, number)
    for number in order[at:]:
        add(second, number)
    for whole, *halves in list(zip(one.tensors, first.tensors, second.tensors, strict=True))[:2]:
        assert torch.equal(whole, sum(halves))


def test_without_rounding_order_would_matter(monkeypatch):
    monkeypatch.setattr(gram, "rounded", lambda products, left, right: products)
    parts = list(parts_of(50, 0, 0))
    one, other = Gram(50, CPU), Gram(50, CPU)
    for part, opposite in zip(parts, reversed(parts), strict=True):
        one.add(part, scales(part))
        other.add(opposite, scales(opposite))
    assert not torch.equal(one.sums, other.sums)


@given(
    one=st.floats(-1.0, 1.0),
    two=st.floats(-1.0, 1.0),
    power=st.integers(-300, 300),
    bound=st.sampled_from([0.0, 0.5, 1.0 - 2.0**-53, 1.0]),
)
def test_rounding_is_to_multiples_near_by(one, two, power, bound):
    largest = torch.tensor([[bound * 2.0**power]], dtype=torch.float64)
    scale = scales(largest)
    assert largest <= scale <= (2.0 * largest if bound else 1.0)
    exact = one * largest * two * largest
    step = 2.0**-DIGITS * scale**2
    if step < 2.0**-1000 or step > 2.0**900:
        return
    found = rounded(exact.clone(), scale, scale)
    assert abs(found - exact) <= step / 2
    assert found / step == torch.round(found / step)


@pytest.mark.parametrize("power", [-20, -10, 0, 10])
def test_the_scale_of_features_does_not_matter_to_a_fit(power):
    """The bias's column is 1 whatever the features are; it must not set how they are rounded."""
    generator = torch.Generator().manual_seed(0)
    decay = 10.0 ** torch.linspace(0, -4, 100, dtype=torch.float64)
    p = torch.randn(800, 100, generator=generator, dtype=torch.float64) * decay
    q = p @ torch.randn(100, 7, generator=generator, dtype=torch.float64) + 0.1 * torch.randn(
        800, 7, generator=generator
    )
    fits = []
    for factor in (1.0, 2.0**power):
        sums = LeastSquares(100, 7, CPU)
        for at in range(0, 800, 100):
            sums.add(factor * p[at : at + 100], q[at : at + 100])
        solution = sums.solve(1e-6)
        solution[:-1] *= factor
        fits.append(solution)
        wrong = torch.cat([p, torch.ones(800, 1)], 1) @ solution - q
        solution = solution.clone()
        solution[:-1] /= factor
        assert sums.error(solution) == pytest.approx(float(wrong.square().sum()), rel=1e-6)
    torch.testing.assert_close(*fits, rtol=1e-6, atol=1e-6)


def test_float32_is_summed_in_float64():
    rows = torch.randn(40, 30)
    sums = Gram(30, CPU)
    for _ in range(3):
        sums.add(rows)
    assert torch.equal(sums.matrix.triu(), 3.0 * (rows.T @ rows).double().triu())


@given(order=st.permutations(range(12)), seed=st.integers(0, 1000), spread=st.integers(0, 60))
def test_column_sums_depend_on_no_order_and_small_columns_are_not_lost(order, seed, spread):
    parts = list(parts_of(6, seed, spread))
    sums = [column_sums(part.float() if seed % 2 else part) for part in parts]
    forward, permuted = (sum(sums[number] for number in numbers) for numbers in (range(12), order))
    assert torch.equal(forward, permuted)
    rows = torch.cat(parts)
    error = (forward - rows.sum(0)).abs() / (rows.norm(dim=0) * len(rows) ** 0.5)
    assert float(error.max()) < (1e-7 if seed % 2 else 1e-9)
