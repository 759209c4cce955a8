import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kprune.maths import least_squares
from kprune.maths.brain_surgeon import BrainSurgeon
from kprune.maths.least_squares import (
    FIRST_RIDGE,
    RIDGES,
    HalvedLeastSquares,
    LeastSquares,
    reconstructing_weights,
)

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


def halved(p, q, half):
    sums = HalvedLeastSquares(p.shape[1], q.shape[1], CPU)
    sums.add(p, q, None, half)
    return sums


@pytest.mark.parametrize("bias", [False, True])
def test_a_fit_toward_a_prior_is_that_of_the_stacked_problem(bias):
    p, q = problem(60, 4, 3, 1)
    sums, prior = LeastSquares(4, 3, CPU), torch.randn(5, 3, dtype=p.dtype)
    sums.add(p, q)
    full = torch.cat([p, torch.ones(60, 1, dtype=p.dtype)], 1) if bias else p
    roots = torch.zeros(4, full.shape[1], dtype=p.dtype)
    roots[:, :4] = torch.diag((0.3 * p.square().sum(0)).sqrt())
    expected = torch.linalg.lstsq(torch.cat([full, roots]), torch.cat([q, roots[:, :4] @ prior[:4]])).solution
    found = sums.solve_toward(prior, 0.3, bias=bias)
    torch.testing.assert_close(found[: full.shape[1]], expected)


def test_a_scale_of_a_feature_does_not_change_the_fit_toward_a_prior():
    p, q = problem(60, 4, 3, 1)
    prior, scale = torch.randn(5, 3, dtype=p.dtype), torch.tensor([10.0, 1.0, 0.1, 5.0], dtype=p.dtype)
    plain, scaled = LeastSquares(4, 3, CPU), LeastSquares(4, 3, CPU)
    plain.add(p, q)
    scaled.add(p * scale, q)
    other_prior = torch.cat([prior[:4] / scale[:, None], prior[4:]])
    found = scaled.solve_toward(other_prior, 0.3)
    torch.testing.assert_close(found[:4] * scale[:, None], plain.solve_toward(prior, 0.3)[:4], rtol=1e-6, atol=1e-8)


def test_the_sums_of_halves_add_up():
    p, q = problem(60, 4, 3, 2)
    whole, halves = LeastSquares(4, 3, CPU), halved(p, q, torch.arange(60) % 2)
    whole.add(p, q)
    torch.testing.assert_close(halves.solve(1e-6), whole.solve(1e-6))
    assert halves.error(halves.solve(0.1)) == pytest.approx(whole.error(whole.solve(0.1)))


def test_held_out_error_is_that_of_each_half_judging_the_other():
    p, q = problem(60, 4, 3, 3)
    half, prior, left = torch.arange(60) % 2, torch.randn(5, 3, dtype=torch.float64), torch.zeros(3)
    prior[-1] = 0.0  # the change of the bias
    for number in (0, 1):
        fitted = LeastSquares(4, 3, CPU)
        fitted.add(p[half == number], q[half == number])
        solution = fitted.solve_toward(prior, 0.1)
        left = left + (p[half != number] @ solution[:4] + solution[4] - q[half != number]).square().sum(0)
    expected = float((left / (p @ prior[:4] - q).square().sum(0)).mean())
    assert halved(p, q, half).held_out_error(prior, 0.1, bias=True) == pytest.approx(expected)


@pytest.mark.parametrize("tokens", [12, 40, 2000])
@pytest.mark.parametrize("noise", [0.01, 1.0, 100.0])
def test_cross_validation_takes_the_ridge_with_the_least_held_out_error(tokens, noise):
    p, _ = problem(tokens, 8, 3, 4)
    truth = torch.randn(8, 3, dtype=p.dtype, generator=torch.Generator().manual_seed(5))
    q = p @ truth + noise * problem(tokens, 1, 3, 6)[1]
    sums = halved(p, q, torch.arange(tokens) % 2)
    prior = torch.cat([truth + 0.1, torch.zeros(1, 3, dtype=p.dtype)])
    errors = [sums.held_out_error(prior, ridge, bias=False) for ridge in RIDGES]
    assert sums.best_ridge(prior, bias=False) == RIDGES[errors.index(min(errors))]
    distance = (sums.cross_validated(prior, bias=False)[:8] - truth).norm()
    if noise == 100.0:
        assert distance < 0.1 * (sums.solve(1e-9, bias=False)[:8] - truth).norm()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [1e3, 1e-3])
def test_the_size_of_an_output_does_not_change_the_ridge(seed, scale):
    """An output without noise wants no ridge, noisy ones want a large one: the largest output must not decide."""
    p, noise = problem(40, 16, 8, seed)
    truth = torch.randn(16, 8, dtype=p.dtype, generator=torch.Generator().manual_seed(11))
    q = p @ truth + 3.0 * noise * torch.tensor([0.0, *[1.0] * 7], dtype=p.dtype)
    prior = torch.cat([truth + 0.5, torch.zeros(1, 8, dtype=p.dtype)])
    sizes = torch.tensor([scale, *[1.0] * 7], dtype=p.dtype)
    half = torch.arange(40) % 2
    ridge = halved(p, q * sizes, half).best_ridge(prior * sizes, bias=True)
    assert ridge == halved(p, q, half).best_ridge(prior, bias=True)
    assert ridge > halved(p, q[:, :1], half).best_ridge(prior[:, :1], bias=True)


@pytest.mark.parametrize("seed", range(3))
def test_some_of_many_outputs_choose_a_ridge_that_is_good_for_all(seed, monkeypatch):
    """Outputs with different noise want different ridges; the choice of every sixth is compared with that of all."""
    tokens, features, outputs = 80, 16, 6 * least_squares.JUDGING_OUTPUTS
    p, noise = problem(tokens, features, outputs, seed)
    truth = torch.randn(features, outputs, dtype=p.dtype, generator=torch.Generator().manual_seed(seed + 10))
    levels = torch.logspace(-2, 1, outputs, dtype=p.dtype)[torch.randperm(outputs)]
    sums = halved(p, p @ truth + levels * noise, torch.arange(tokens) % 2)
    prior = torch.cat([truth + 0.3, torch.zeros(1, outputs, dtype=p.dtype)])
    chosen = sums.best_ridge(prior, bias=True)
    monkeypatch.setattr(least_squares, "JUDGING_OUTPUTS", outputs)
    errors = [sums.held_out_error(prior, ridge, bias=True) for ridge in RIDGES]
    assert max(errors) > 1.5 * min(errors)
    assert sums.held_out_error(prior, chosen, bias=True) < 1.02 * min(errors)


def test_one_example_is_fitted_without_a_judge():
    p, q = problem(60, 4, 3, 7)
    sums, prior = halved(p, q, None), torch.zeros(5, 3, dtype=torch.float64)
    torch.testing.assert_close(sums.cross_validated(prior), sums.solve_toward(prior, 0.5 * FIRST_RIDGE))


def test_features_that_are_all_zero_keep_their_weights():
    _, q = problem(60, 4, 3, 8)
    prior = torch.randn(5, 3, dtype=torch.float64)
    sums = halved(torch.zeros(60, 4, dtype=torch.float64), q, torch.arange(60) % 2)
    torch.testing.assert_close(sums.cross_validated(prior)[:4], prior[:4])


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


def test_features_whose_products_are_rounded_away_do_not_stop_the_refit():
    """Two features that are nearly the same, one 30,000 times larger: their rounded sums are indefinite."""
    p, q = problem(400, 4, 3, 9)
    p[:, 1] = 3e-5 * p[:, 0] * (1 + 1e-7 * p[:, 2])
    prior = torch.zeros(5, 3, dtype=torch.float64)
    sums = halved(p, q, torch.arange(400) % 2)
    found = sums.cross_validated(prior)
    assert sums.error(found) < sums.error(prior)


@pytest.mark.parametrize("ratio", [1e-3, 1e-5, 1e-6])
def test_rounding_of_the_sums_is_not_fitted_where_features_are_small(ratio):
    """Features of all scales, nearly dependent: small ones are within the rounding of the sums of large ones."""
    size, tokens = 60, 400
    generator = torch.Generator().manual_seed(1)
    base, mix, weights, noise, move = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((tokens, size // 2), (size // 2, size), (size, 3), (tokens, 3), (size, 3))
    )
    scale = torch.logspace(0, math.log10(ratio), size, dtype=torch.float64)[:, None]
    p = (base @ mix + 1e-3 * torch.randn(tokens, size, generator=generator, dtype=torch.float64)) * scale.T
    q = p @ (weights / scale) + 0.1 * noise
    prior = torch.cat([(weights + 0.3 * move) / scale, torch.zeros(1, 3, dtype=torch.float64)])
    found = halved(p, q, torch.arange(tokens) % 2).cross_validated(prior)
    errors = [float((p @ each[:-1] + each[-1] - q).square().sum()) for each in (found, prior)]
    assert errors[0] < 0.01 * errors[1]
