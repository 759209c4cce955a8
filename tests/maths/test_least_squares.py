import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kprune.maths.least_squares import LeastSquares

CPU = torch.device("cpu")


def problem(tokens, features, outputs, seed):
    generator = torch.Generator().manual_seed(seed)
    p = torch.randn(tokens, features, generator=generator, dtype=torch.float64)
    return p, torch.randn(tokens, outputs, generator=generator, dtype=torch.float64) + 1.0


sizes = st.tuples(st.integers(1, 12), st.integers(1, 5), st.integers(0, 10_000))


@settings(deadline=None)
@given(sizes, st.booleans(), st.integers(1, 3))
def test_the_solution_is_that_of_lstsq_on_the_whole_problem(size, bias, parts):
    features, outputs, seed = size
    p, q = problem(4 * features + 5, features, outputs, seed)
    sums = LeastSquares(features, outputs, CPU)
    for chunk_p, chunk_q in zip(p.chunk(parts), q.chunk(parts), strict=True):
        sums.add(chunk_p, chunk_q)
    solution = sums.solve(0.0, bias=bias)
    full = torch.cat([p, torch.ones(len(p), 1, dtype=p.dtype)], 1) if bias else p
    expected = torch.linalg.lstsq(full, q).solution
    torch.testing.assert_close(solution[: full.shape[1]], expected, rtol=1e-6, atol=1e-8)
    if not bias:
        assert not solution[-1].any()
    residual = (torch.cat([p, torch.ones(len(p), 1, dtype=p.dtype)], 1) @ solution - q).square().sum()
    assert sums.error(solution) == pytest.approx(float(residual), rel=1e-6)


def test_weights_count_like_repetitions():
    p, q = problem(60, 4, 3, 7)
    weights = torch.randint(0, 4, (60,))
    weighted, repeated = LeastSquares(4, 3, CPU), LeastSquares(4, 3, CPU)
    weighted.add(p, q, weights)
    repeated.add(p.repeat_interleave(weights, 0), q.repeat_interleave(weights, 0))
    torch.testing.assert_close(weighted.solve(1e-6), repeated.solve(1e-6))
    assert weighted.error(weighted.solve(0.1)) == pytest.approx(repeated.error(repeated.solve(0.1)))


def test_without_features_the_bias_is_the_mean():
    _, q = problem(50, 1, 3, 0)
    sums = LeastSquares(0, 3, CPU)
    sums.add(q[:, :0], q)
    torch.testing.assert_close(sums.solve(1e-6), q.mean(0, keepdim=True))
    assert not sums.solve(1e-6, bias=False).any()


def test_a_ridge_shrinks_weights_but_not_the_bias():
    p, q = problem(200, 4, 2, 0)
    sums = LeastSquares(4, 2, CPU)
    sums.add(p - p.mean(0), q)
    free, tight = sums.solve(0.0), sums.solve(1e3)
    assert tight[:-1].norm() < 1e-2 * free[:-1].norm()
    torch.testing.assert_close(tight[-1], free[-1])


def test_dependent_columns_need_a_ridge():
    p, q = problem(50, 3, 2, 0)
    sums = LeastSquares(4, 2, CPU)
    sums.add(torch.cat([p, torch.zeros(50, 1, dtype=p.dtype)], 1), q)
    with pytest.raises(torch.linalg.LinAlgError):
        sums.solve(0.0)
    assert sums.solve(1e-6).isfinite().all()
