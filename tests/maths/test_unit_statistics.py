import pytest
import torch

from kprune.maths.unit_statistics import (
    ISOTROPIC_SHARE,
    KnowledgeStatistics,
    ReleasedStatistics,
    SensitivityStatistics,
)

CPU = torch.device("cpu")


def problem(units, width, outputs, seed, tokens=200):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(units * width, units * width, generator=generator, dtype=torch.float64)
    features = torch.randn(tokens, units * width, generator=generator, dtype=torch.float64) @ mixing
    return features, torch.randn(outputs, units * width, generator=generator, dtype=torch.float64)


def test_sums_over_parts_of_a_sample_add_up():
    features, gradient = torch.randn(6, 5, 12), torch.randn(6, 12)
    real = torch.ones(6, 5, dtype=torch.bool)
    whole, parts = KnowledgeStatistics(3, 4, torch.device("cpu")), KnowledgeStatistics(3, 4, torch.device("cpu"))
    whole.add_features(features, real)
    whole.add_gradient(gradient, torch.arange(6))
    for rows in range(3):
        padded = torch.cat([features[2 * rows : 2 * rows + 2], torch.randn(2, 4, 12)], 1)
        parts.add_features(padded, torch.tensor([1, 1, 1, 1, 1, 0, 0, 0, 0]).bool().expand(2, 9))
        parts.add_gradient(gradient[2 * rows : 2 * rows + 2], torch.arange(2))
    torch.testing.assert_close(parts.predictive(6), whole.predictive(6), rtol=1e-5, atol=0)
    weight = torch.randn(5, 12)
    torch.testing.assert_close(
        parts.representational(weight, 6, 30), whole.representational(weight, 6, 30), rtol=1e-5, atol=0
    )


def test_a_last_group_that_is_not_full_is_averaged_over_its_own_size():
    sums = ReleasedStatistics(1, 1, torch.device("cpu"), examples=3, group=2)
    sums.add_gradient(torch.tensor([[1.0], [3.0], [5.0]]), torch.arange(3))
    assert sums.predictive(3).tolist() == pytest.approx([(2.0**2 + 5.0**2) / (2 * 3)])


def test_sensitivity_is_the_weighted_error_of_the_best_refit_with_its_bias():
    features, weight = problem(6, 1, 4, 3, tokens=300)
    features += 2.0
    gradient = torch.randn(300, 4, dtype=torch.float64) * torch.tensor([3.0, 1.0, 0.1, 0.0]) * torch.rand(300, 1)
    sums = SensitivityStatistics(6, 4, CPU)
    for part in range(3):
        sensitivity = sums.add(features[part::3], gradient[part::3], floor=0.01)
        torch.testing.assert_close(sensitivity, gradient[part::3].square().sum(1) / 8)
    found = sums.removal_costs(weight, 1, 50, bias=True)
    directions = gradient.T @ gradient / gradient.square().sum() * 4
    directions = (1 - ISOTROPIC_SHARE) * directions + ISOTROPIC_SHARE * torch.eye(4)
    token = (gradient.square().mean(1, keepdim=True) / 2 + 0.01).sqrt()
    wide = torch.cat([features, torch.ones(300, 1)], 1) * token
    errors = []
    for unit in range(6):
        kept = [u for u in range(6) if u != unit]
        wanted = wide[:, :6] @ weight.T
        solution = torch.linalg.lstsq(wide[:, [*kept, 6]], wanted).solution
        wrong = wide[:, [*kept, 6]] @ solution - wanted
        errors.append(float((wrong @ directions * wrong).sum()) / 50)
    assert float(found.min()) == pytest.approx(min(errors), rel=1e-2)
    assert int(found.argmin()) == errors.index(min(errors))


def test_features_that_hardly_vary_are_no_trouble():
    """A classifier's first token is much the same everywhere: rounding may make its Gram matrix negative."""
    generator = torch.Generator().manual_seed(0)
    features = 30.0 + 1e-3 * torch.randn(4000, 64, generator=generator)
    features[:, :4] += torch.randn(4000, 4, generator=generator)
    sums = SensitivityStatistics(64, 8, CPU)
    for rows in features.split(50):
        sums.add(rows, torch.randn(len(rows), 8, generator=generator), floor=1e-6)
    gram = sums.gram.matrix
    centred = gram[:-1, :-1] - gram[:-1, -1:] @ gram[-1:, :-1] / gram[-1, -1]
    assert torch.linalg.eigvalsh(centred)[0] < 0  # the case that is meant
    found = sums.removal_costs(torch.randn(8, 64, generator=generator), 1, 100, bias=True)
    assert found.isfinite().all()
    assert set(found.argsort(descending=True)[:4].tolist()) == {0, 1, 2, 3}


def test_sensitivities_that_are_not_finite_are_told():
    sums = SensitivityStatistics(4, 2, CPU)
    sums.add(torch.ones(3, 4), torch.full((3, 2), torch.nan), floor=1e-6)
    with pytest.raises(ArithmeticError, match="not positive definite"):
        sums.removal_costs(torch.ones(2, 4), 1, 3, bias=True)


def test_gradients_that_vanish_leave_all_directions_equal():
    features, weight = problem(6, 1, 4, 3, tokens=300)
    vanished, even = SensitivityStatistics(6, 4, CPU), SensitivityStatistics(6, 4, CPU)
    vanished.add(features, torch.zeros(300, 4, dtype=torch.float64), floor=0.01)
    even.add(features, torch.zeros(300, 4, dtype=torch.float64), floor=0.01)
    even.directions.add(torch.eye(4, dtype=torch.float64))
    found, expected = (sums.removal_costs(weight, 1, 50, bias=True) for sums in (vanished, even))
    assert found.min() > 0
    torch.testing.assert_close(found / ISOTROPIC_SHARE, expected)
