"""How much a unit knows: Equations 5 to 8, the Fisher form that does not vanish, and the authors' released scales.

Every quantity is a running sum over examples or tokens. A model's output is a matrix of shape (rows, classes) with a
weight per row: one row for a classified example, two for a span's start and end, one for every predicted token.
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
    """The same for outputs that are values, w ‖z_T − z_S‖²; shape (rows,)."""
    return weights * (student - teacher).square().sum(-1)


def divergence_probe(student: Tensor, teacher: Tensor, weights: Tensor, signs: Tensor, temperature: float) -> Tensor:
    """A number per row whose squared mask gradient is, on average over signs, the divergence's second derivative.

    The divergence has its minimum where student and teacher agree: there its gradient is rounding noise, and Equation 6
    would rank by noise. The second-order term stands: ½ Σ_c p_c (γ ∂log s_γ(z)_c / ∂m)², the Fisher information of the
    teacher's own prediction p. With independent random signs r, the sum over classes is the mean of the square of
    γ Σ_c r_c √p_c ∂log s_γ(z)_c / ∂m, so one backward pass serves any number of classes. Once the student differs from
    the teacher, that mean also holds the square of the divergence's own gradient.
    """
    log_s = torch.log_softmax(student / temperature, dim=-1)
    root_p = torch.softmax(teacher / temperature, dim=-1).sqrt()
    terms = torch.where(root_p == 0, 0.0, signs * root_p * log_s)
    return temperature * weights.sqrt() * terms.sum(-1)


def squared_error_probe(student: Tensor, weights: Tensor, signs: Tensor) -> Tensor:
    """The same for outputs that are values: the second derivative of the squared error is 2 ‖∂z/∂m‖²."""
    return (2.0 * weights).sqrt() * (signs * student).sum(-1)


def random_signs(example: Tensor, position: Tensor, classes: int, seed: int) -> Tensor:
    """±1 for every row and class, (rows, classes), from the row's example and position: batching cannot change one."""
    key = example * 0x9E3779B1 + position * 0x85EBCA77 + (seed * 0xC2B2AE3D & 0xFFFFFFFF)
    key = key[:, None] + torch.arange(classes, device=example.device) * 0x27D4EB2F
    # Two rounds of a 32-bit integer mixer; products that overflow int64 wrap, and keep their low bits.
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        key = key & 0xFFFFFFFF
        key = (key ^ (key >> shift)) * factor
    return 1.0 - 2.0 * ((key >> 17) & 1).float()


class Knowledge:
    """Sums for the equations' own scale: every example's own gradient, every unit's exact Gram matrix."""

    def __init__(self, units: int, width: int, device: torch.device) -> None:
        self.width = width
        self.squares = torch.zeros(units, dtype=torch.float64, device=device)
        self.grams = torch.zeros(units, width, width, dtype=torch.float64, device=device)

    @property
    def tensors(self) -> list[Tensor]:
        """The sums themselves."""
        return [self.squares, self.grams]

    def add_features(self, features: Tensor, real: Tensor) -> None:
        """Add examples' features, (examples, length, features), at tokens that are real: 1 or 0, (examples, length)."""
        if self.width == 1:
            self.grams.view(-1).add_(_squares(features, real))
        else:
            by_unit = (features * real[:, :, None]).flatten(0, 1).unflatten(1, (-1, self.width)).transpose(0, 1)
            self.grams += by_unit.transpose(1, 2) @ by_unit  # (units, width, tokens) by (units, tokens, width)

    def add_gradient(self, gradient: Tensor, example: Tensor) -> None:
        """Add ∂K/∂m of each example and feature, (examples, features); a unit's mask scales all its features."""
        of_units = gradient if self.width == 1 else gradient.unflatten(1, (-1, self.width)).sum(2)
        self.squares += of_units.square().sum(0)

    def predictive(self, examples: int) -> Tensor:
        """K_pred per unit, mean over examples of ½ (∂K/∂m)² (Equation 6; the caller divides by γ² where K has it)."""
        return self.squares / (2.0 * examples)

    def representational(self, weight: Tensor, examples: int, tokens: int) -> Tensor:
        """K_rep per unit, mean over examples of ‖W_u f_u‖² = tr(W_u G_u W_uᵀ) (Equation 8); `weight`: (d, features)."""
        if self.width == 1:
            return self.grams[:, 0, 0] * weight.square().sum(0, dtype=torch.float64) / examples
        by_unit = weight.double().unflatten(1, (-1, self.width)).transpose(0, 1)  # (units, d, width)
        energy: Tensor = ((by_unit @ self.grams) * by_unit).sum((1, 2))
        return energy / examples


class ReleasedKnowledge(Knowledge):
    """Sums for the scales of the authors' released code, to which their λ and μ belong.

    The gradient is averaged over a batch before it is squared, each of a head's d_h features has its own mask, and
    squares are averaged over d_h; features count per token, over d, without cross terms.
    """

    def __init__(self, units: int, width: int, device: torch.device, *, examples: int, group: int) -> None:
        super().__init__(units, width, device)
        self.group = group
        self.examples = examples
        self.sums = torch.zeros(-(-examples // group), units * width, dtype=torch.float64, device=device)

    @property
    def tensors(self) -> list[Tensor]:
        return [self.sums, self.grams]

    def add_features(self, features: Tensor, real: Tensor) -> None:
        self.grams.diagonal(dim1=1, dim2=2).add_(_squares(features, real).view(-1, self.width))

    def add_gradient(self, gradient: Tensor, example: Tensor) -> None:
        self.sums.index_add_(0, example // self.group, gradient.to(self.sums.dtype))

    def predictive(self, examples: int) -> Tensor:
        sizes = torch.full((len(self.sums), 1), float(self.group), device=self.sums.device)
        sizes[-1] = self.examples - self.group * (len(self.sums) - 1)
        squares = (self.sums / sizes).square().sum(0).view(-1, self.width)
        return squares.mean(1) / (2.0 * examples)

    def representational(self, weight: Tensor, examples: int, tokens: int) -> Tensor:
        energy = self.grams.diagonal(dim1=1, dim2=2) * weight.square().mean(0, dtype=torch.float64).view(-1, self.width)
        return energy.mean(1) / tokens


def _squares(features: Tensor, real: Tensor) -> Tensor:
    """Σ f² of each feature over the real tokens, (features,); as products of matrices, the quickest there are."""
    return (real[:, None].to(features.dtype) @ features.square()).sum((0, 1))
