"""How far a student's predictions are from the teacher's (Equation 5), and probes of that loss's curvature.

A model's output is a matrix of shape (rows, classes) with a weight per row: one row for a classified example, two for
a span's start and end, one for every predicted token.
"""

from __future__ import annotations

import torch
from torch import Tensor


def divergence(student: Tensor, teacher: Tensor, weights: Tensor, temperature: float) -> Tensor:
    """Lost predictive knowledge of each row, γ² w KL(s_γ(z_T) ‖ s_γ(z_S)) (Equation 5); shape (rows,)."""
    log_s = torch.log_softmax(student / temperature, dim=-1)
    log_t = torch.log_softmax(teacher / temperature, dim=-1)
    # A class that the teacher rules out (padding of a span) adds nothing: 0·(−∞) would be NaN.
    terms = torch.where(log_t.isneginf(), 0.0, log_t.exp() * (log_t - log_s))
    return temperature**2 * weights * terms.sum(-1)


def squared_error(student: Tensor, teacher: Tensor, weights: Tensor) -> Tensor:
    """The loss for outputs that are values, w ‖z_T − z_S‖²; shape (rows,)."""
    return weights * (student - teacher).square().sum(-1)


def divergence_probe(student: Tensor, teacher: Tensor, weights: Tensor, signs: Tensor, temperature: float) -> Tensor:
    """A number per row whose squared mask gradient is, in expectation over signs, the divergence's second derivative.

    The divergence is minimal where student and teacher agree: its gradient there is rounding noise, and Equation 6
    would rank units by noise. The second-order term remains: ½ Σ_c p_c (γ ∂log s_γ(z)_c / ∂m)², the Fisher information
    of the teacher's prediction p. With independent random signs r, the sum over classes is the mean of the square of
    γ Σ_c r_c √p_c ∂log s_γ(z)_c / ∂m, so one backward pass serves any number of classes. Once the student differs from
    the teacher, that mean also contains the square of the divergence's own gradient.
    """
    log_s = torch.log_softmax(student / temperature, dim=-1)
    root_p = torch.softmax(teacher / temperature, dim=-1).sqrt()
    terms = torch.where(root_p == 0, 0.0, signs * root_p * log_s)
    return temperature * weights.sqrt() * terms.sum(-1)


def squared_error_probe(student: Tensor, weights: Tensor, signs: Tensor) -> Tensor:
    """The probe for outputs that are values: the second derivative of the squared error is 2 ‖∂z/∂m‖²."""
    return (2.0 * weights).sqrt() * (signs * student).sum(-1)


def random_signs(example: Tensor, position: Tensor, classes: int, seed: int) -> Tensor:
    """±1 for every row and class, (rows, classes), hashed from example and position: batching does not change them."""
    key = example * 0x9E3779B1 + position * 0x85EBCA77 + (seed * 0xC2B2AE3D & 0xFFFFFFFF)
    key = key[:, None] + torch.arange(classes, device=example.device) * 0x27D4EB2F
    # Two rounds of a 32-bit integer mixer; products that overflow int64 wrap and keep their low bits.
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        key = key & 0xFFFFFFFF
        key = (key ^ (key >> shift)) * factor
    return 1.0 - 2.0 * ((key >> 17) & 1).float()
