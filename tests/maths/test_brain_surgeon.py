"""Costs of removal after compensation, against least squares that are solved in full."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kprune.maths.brain_surgeon import BrainSurgeon, cholesky_factor, removal_costs, removal_path


def problem(units, width, outputs, seed, tokens=200):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(units * width, units * width, generator=generator, dtype=torch.float64)
    features = torch.randn(tokens, units * width, generator=generator, dtype=torch.float64) @ mixing
    return features, torch.randn(outputs, units * width, generator=generator, dtype=torch.float64)


def refitted(features, weight, kept):
    """‖F Wᵀ − F_kept Vᵀ‖² of the best V, and that V."""
    wanted = features @ weight.T
    if not len(kept):
        return float(wanted.square().sum()), weight[:, :0]
    solution = torch.linalg.lstsq(features[:, kept], wanted, driver="gelsd").solution
    return float((features[:, kept] @ solution - wanted).square().sum()), solution.T


def columns(units, width):
    return [unit * width + i for unit in units for i in range(width)]


sizes = st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(1, 4), st.integers(0, 10_000))


@settings(deadline=None)
@given(sizes, st.data())
def test_the_cost_of_a_set_is_the_error_that_the_best_refit_leaves(size, data):
    units, width, outputs, seed = size
    features, weight = problem(units, width, outputs, seed)
    gone = data.draw(st.lists(st.integers(0, units - 1), min_size=1, unique=True))
    surgeon = BrainSurgeon(features.T @ features, weight, width, ridge=1e-13)
    whole = float((features @ weight.T).square().sum())
    # One by one: each removal starts from the result of the one before.
    cost, first = surgeon.remove(torch.tensor(gone[:1])), gone[0]
    for unit in gone[1:]:
        cost += surgeon.remove(torch.tensor([unit]))
    kept = columns([unit for unit in range(units) if unit not in gone], width)
    error, best = refitted(features, weight, kept)
    assert cost == pytest.approx(error, rel=1e-5, abs=1e-8 * whole)
    assert surgeon.units.tolist() == sorted(set(range(units)) - set(gone))
    torch.testing.assert_close(surgeon.weight, best, rtol=1e-4, atol=1e-6)
    at_once = BrainSurgeon(features.T @ features, weight, width, ridge=1e-13)
    alone, _ = refitted(features, weight, columns(set(range(units)) - {first}, width))
    assert at_once.costs()[first] == pytest.approx(alone, rel=1e-5, abs=1e-8 * whole)
    assert at_once.remove(torch.tensor(gone)) == pytest.approx(cost, rel=1e-5, abs=1e-8 * whole)


@settings(deadline=None, max_examples=40)
@given(sizes)
def test_units_go_in_the_order_of_exhaustive_search(size):
    units, width, outputs, seed = size
    features, weight = problem(units, width, outputs, seed)
    whole = float((features @ weight.T).square().sum())
    left, spent, highest, expected = list(range(units)), 0.0, 0.0, {}
    while left:
        errors = {u: refitted(features, weight, columns([v for v in left if v != u], width))[0] for u in left}
        cheapest = min(errors, key=errors.get)
        highest = max(highest, errors[cheapest] - spent)
        expected[cheapest], spent = highest, errors[cheapest]
        left.remove(cheapest)
    found = removal_costs(features.T @ features, weight, width, ridge=1e-13)
    assert found.tolist() == pytest.approx([expected[u] for u in range(units)], rel=1e-4, abs=1e-7 * whole)


def test_of_two_equal_units_one_is_free():
    features, weight = problem(5, 1, 3, 0)
    features[:, 4] = features[:, 2]
    found = removal_costs(features.T @ features, weight, 1, ridge=1e-9)
    assert found.min() < 1e-6 * found.max()
    # Alone, both would be cheap; after one of them, the other is as dear as the two together.
    assert sorted(found.argsort().tolist()[:1])[0] in (2, 4)
    other = 6 - int(found.argmin())
    merged = weight.clone()
    merged[:, 2] += merged[:, 4]
    alone = removal_costs(features[:, :4].T @ features[:, :4], merged[:, :4], 1, ridge=1e-9)
    assert found[other] == pytest.approx(float(alone[2]), rel=1e-4)


def test_sums_that_are_no_gram_matrix_are_told():
    with pytest.raises(ArithmeticError, match="not positive definite"):
        removal_costs(torch.full((4, 4), torch.nan), torch.ones(2, 4), 1)


def test_the_ridge_grows_until_a_factor_exists():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    definite = root @ root.T
    factor = cholesky_factor(definite, 0.0)
    torch.testing.assert_close(factor @ factor.T, definite)
    indefinite = definite - 1.01 * torch.linalg.eigvalsh(definite)[0] * torch.eye(5, dtype=torch.float64)
    assert torch.linalg.eigvalsh(indefinite)[0] < 0
    factor = cholesky_factor(indefinite, 1e-12)
    change = factor @ factor.T - indefinite
    torch.testing.assert_close(change, change[0, 0] * torch.eye(5, dtype=torch.float64), rtol=1e-6, atol=1e-9)
    assert 0 < change[0, 0] < 0.1 * definite.diagonal().mean()


def test_chunks_remove_as_many_at_a_time():
    features, weight = problem(40, 1, 3, 1)
    gram = features.T @ features
    one_by_one, by_four = (removal_costs(gram, weight, 1, chunk=chunk) for chunk in (0.0, 0.1))
    assert by_four[by_four.argsort()].tolist() == sorted(by_four.tolist())
    first = BrainSurgeon(gram, weight, 1, ridge=1e-4).costs().argsort()[:4]
    assert set(by_four.argsort()[:4].tolist()) == set(first.tolist())
    assert set(one_by_one.argsort()[:4].tolist()) != set(by_four.argsort()[:4].tolist())


@pytest.mark.parametrize("threads", [1, 2])
def test_heads_of_grouped_queries_are_wide_and_their_costs_do_not_depend_on_threads(threads):
    """A key/value head of three queries has 192 features; torch's LU solve fails there on two threads."""
    width = 192
    features, weight = problem(2, width, 3, seed=0, tokens=600)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        costs = BrainSurgeon(features.T @ features, weight, width, ridge=1e-13).costs()
    finally:
        torch.set_num_threads(before)
    wanted = [refitted(features, weight, columns([1 - unit], width))[0] for unit in range(2)]
    assert costs.tolist() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("width", [1, 2])
def test_the_path_of_removal_takes_the_cheapest_unit_of_all_each_time(width):
    """Every removal is compared with least squares after the removal of each other remaining unit."""
    units, outputs = 5, 3
    generator = torch.Generator().manual_seed(width)
    f = torch.randn(80, units * width, generator=generator, dtype=torch.float64)
    f[:, -1] += 0.8 * f[:, 0]
    weight = torch.randn(outputs, units * width, generator=generator, dtype=torch.float64)

    def error(kept):
        columns = [unit * width + n for unit in sorted(kept) for n in range(width)]
        wanted = f @ weight.T
        best = f[:, columns] @ torch.linalg.lstsq(f[:, columns], wanted).solution if columns else 0.0
        return float((best - wanted).square().sum() / wanted.square().sum())

    order, counts, errors = removal_path(f.T @ f / 80, weight, width, ridge=0.0)
    kept, expected, path = set(range(units)), [0.0], []
    while kept:
        cheapest = min(kept, key=lambda unit: error(kept - {unit}))
        kept.remove(cheapest)
        path.append(cheapest)
        expected.append(error(kept))
    assert order.tolist() == path
    assert counts.tolist() == list(range(units + 1))
    assert errors.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert float(errors[-1]) == pytest.approx(1.0)


def test_the_path_of_removal_ends_with_what_is_left():
    generator = torch.Generator().manual_seed(0)
    f = torch.randn(40, 7, generator=generator, dtype=torch.float64)
    order, counts, errors = removal_path(f.T @ f, torch.randn(2, 7, generator=generator), 1, per_step=3)
    assert sorted(order.tolist()) == list(range(7))
    assert counts.tolist() == [0, 3, 6, 7]
    assert errors.tolist() == sorted(errors.tolist())
