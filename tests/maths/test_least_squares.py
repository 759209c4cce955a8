import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kprune.maths.brain_surgeon import BrainSurgeon
from kprune.maths.least_squares import LeastSquares, reconstructing_weights

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


def reconstruction(tokens, features, outputs, seed, share):
    """Features with a last column of ones, their mean Gram matrix, a weight and a mask of kept features."""
    f, _ = problem(tokens, features, outputs, seed)
    wide = torch.cat([f + 0.5, torch.ones(tokens, 1, dtype=f.dtype)], dim=1)
    generator = torch.Generator().manual_seed(seed + 1)
    weight = torch.randn(outputs, features, generator=generator, dtype=f.dtype)
    keep = torch.rand(features, generator=generator) < share
    return wide, wide.T @ wide / tokens, weight, keep


@settings(deadline=None)
@given(sizes, st.booleans(), st.floats(0.0, 1.0))
def test_reconstructing_weights_are_lstsq_to_the_output_of_all_features(size, bias, share):
    features, outputs, seed = size
    wide, gram, weight, keep = reconstruction(4 * features + 5, features, outputs, seed, share)
    found = reconstructing_weights(gram, weight, keep, 0.0, bias=bias)
    kept = torch.cat([keep, torch.tensor([bias])])
    expected = torch.linalg.lstsq(wide[:, kept], wide[:, :-1] @ weight.T).solution
    torch.testing.assert_close(found[: int(kept.sum())], expected, rtol=1e-6, atol=1e-8)
    assert bias or not bool(found[-1].any())


def test_a_ridge_holds_reconstructing_weights_near_the_given_ones():
    _, gram, weight, keep = reconstruction(50, 9, 4, 3, 0.6)
    given_weight = torch.cat([weight[:, keep].T, torch.zeros(1, 4, dtype=weight.dtype)])
    errors = [
        float((reconstructing_weights(gram, weight, keep, ridge, bias=False) - given_weight).norm())
        for ridge in (0.0, 1e-2, 1.0, 1e6)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.1
    assert errors[-1] < 1e-4
    whole = reconstructing_weights(gram, weight, torch.ones(9, dtype=torch.bool), 0.1, bias=True)
    assert torch.equal(whole[:-1], weight.T)
    assert not bool(whole[-1].any())


def test_reconstructing_weights_are_those_that_the_brain_surgeon_leaves():
    _, gram, weight, keep = reconstruction(60, 10, 4, 5, 0.5)
    surgeon = BrainSurgeon(gram[:-1, :-1], weight, 1, ridge=1e-2)
    for unit in (~keep).nonzero().flatten().tolist():
        surgeon.remove(torch.tensor([unit]))
    found = reconstructing_weights(gram, weight, keep, 1e-2, bias=False)
    torch.testing.assert_close(found[:-1].T, surgeon.weight)
