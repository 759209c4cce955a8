import pytest
import torch

from kprune.maths.losses import divergence, divergence_probe, random_signs, squared_error, squared_error_probe


def test_signs_are_fair_and_belong_to_their_row():
    example, position = torch.arange(200).repeat_interleave(10), torch.arange(10).repeat(200)
    signs = random_signs(example, position, 50, seed=3)
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(signs.mean())) < 0.01
    correlations = (signs.T @ signs / len(signs)).fill_diagonal_(0)
    assert float(correlations.abs().max()) < 0.1
    assert abs(float((signs[1:] * signs[:-1]).mean())) < 0.01
    assert torch.equal(random_signs(example[7:9], position[7:9], 20, seed=3), signs[7:9, :20])
    assert not torch.equal(random_signs(example, position, 50, seed=4), signs)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_divergence_is_equation_5(temperature):
    student, teacher = torch.randn(6, 5), torch.randn(6, 5)
    weights = torch.rand(6)
    p = (teacher / temperature).softmax(-1)
    q = (student / temperature).softmax(-1)
    expected = temperature**2 * weights * (p * (p / q).log()).sum(-1)
    torch.testing.assert_close(divergence(student, teacher, weights, temperature), expected)
    assert divergence(teacher, teacher, weights, temperature).abs().max() < 1e-6


def test_classes_that_the_teacher_rules_out_add_nothing():
    student, teacher = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    out = torch.tensor([[False, False, True, True]])
    masked_student, masked_teacher = student.masked_fill(out, -torch.inf), teacher.masked_fill(out, -torch.inf)
    weights, signs = torch.ones(3), random_signs(torch.arange(3), torch.zeros(3, dtype=torch.long), 4, 0)
    for found, expected in (
        (
            divergence(masked_student, masked_teacher, weights, 2.0),
            divergence(student[:, :2], teacher[:, :2], weights, 2.0),
        ),
        (
            divergence_probe(masked_student, masked_teacher, weights, signs, 2.0),
            divergence_probe(student[:, :2], teacher[:, :2], weights, signs[:, :2], 2.0),
        ),
    ):
        torch.testing.assert_close(found, expected)
        (gradient,) = torch.autograd.grad(found.sum(), student, retain_graph=True)
        assert gradient.isfinite().all()
        assert not gradient[:, 2:].any()


def test_values_are_compared_by_their_squares():
    student, teacher, weights = torch.randn(4, 3), torch.randn(4, 3), torch.rand(4)
    expected = torch.stack([w * ((t - s) ** 2).sum() for s, t, w in zip(student, teacher, weights, strict=True)])
    torch.testing.assert_close(squared_error(student, teacher, weights), expected)
    # The mean of the squared probe over all signs is the squared error's second derivative along the student.
    all_signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3)
    squares = torch.stack([squared_error_probe(student, weights, signs.expand(4, 3)) ** 2 for signs in all_signs])
    torch.testing.assert_close(squares.mean(0), 2.0 * weights * student.square().sum(-1))
