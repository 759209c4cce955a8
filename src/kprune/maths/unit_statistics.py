"""Running sums per unit from which a criterion computes its scores (Equations 6 to 8, and beyond the paper).

All sums are over examples or tokens, so the sums of two parts of a sample add up to the sums of the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kprune.maths.brain_surgeon import cholesky_factor, removal_costs
from kprune.maths.gram import Gram

ISOTROPIC_SHARE = 0.02
"""Share of A in `SensitivityStatistics` that weighs all directions equally."""


class KnowledgeStatistics:
    """Sums on the equations' own scale: each example's gradient squared, each unit's exact Gram matrix."""

    def __init__(self, units: int, width: int, device: torch.device) -> None:
        self.width = width
        self.squares = torch.zeros(units, dtype=torch.float64, device=device)
        self.grams = torch.zeros(units, width, width, dtype=torch.float64, device=device)

    @property
    def tensors(self) -> list[Tensor]:
        """The sums, to be all-reduced."""
        return [self.squares, self.grams]

    def add_features(self, features: Tensor, real: Tensor) -> None:
        """Add features, (examples, length, features); `real` is 1 at real tokens and 0 at padding."""
        if self.width == 1:
            self.grams.view(-1).add_(_sum_of_squares(features, real))
        else:
            by_unit = (features * real[:, :, None]).flatten(0, 1).unflatten(1, (-1, self.width)).transpose(0, 1)
            self.grams += by_unit.transpose(1, 2) @ by_unit  # (units, width, tokens) by (units, tokens, width)

    def add_gradient(self, gradient: Tensor, example: Tensor) -> None:
        """Add ∂K/∂m of each example and feature, (examples, features); a unit's mask scales all its features."""
        by_unit = gradient if self.width == 1 else gradient.unflatten(1, (-1, self.width)).sum(2)
        self.squares += by_unit.square().sum(0)

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


class ReleasedStatistics(KnowledgeStatistics):
    """Sums on the scales of the authors' released code, to which their λ and μ belong.

    The gradient is averaged over a group of examples before it is squared. Each of a head's d_h features has its own
    mask, and squares are averaged over d_h. Features count per token, divided by d, without cross terms.
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
        self.grams.diagonal(dim1=1, dim2=2).add_(_sum_of_squares(features, real).view(-1, self.width))

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


class SensitivityStatistics:
    """Sums for knowledge after compensation: what the removal of a unit costs once the remaining units are refitted.

    A change ΔW of a consumer's weights changes its output by δ_t = ΔW f_t at every token t. To second order, with
    tokens and directions separated, the predictions lose ½ Σ_t ‖g_t‖² δ_tᵀ A δ_t. Here g_t is the gradient of a probe
    of the predictions with respect to the output, and A = Σ g_t g_tᵀ / Σ ‖g_t‖² weighs directions. With the Gram matrix
    G = Σ_t ½ ‖g_t‖² f_t f_tᵀ this is tr(A ΔW G ΔWᵀ): a least-squares problem, so remaining units can compensate.

    Mean pooling does not separate tokens: a change that all tokens of an example share adds up to (Σ_t g_t)ᵀ ΔW f̄, with
    f̄ their mean features. `add_examples` adds each example as one more token for that reason.

    The last column of G belongs to the bias, which is refitted too.
    """

    def __init__(self, features: int, outputs: int, device: torch.device) -> None:
        self.gram = Gram(features + 1, device)
        self.directions = Gram(outputs, device)

    @property
    def tensors(self) -> list[Tensor]:
        """The sums, to be all-reduced."""
        return [self.gram.sums, self.directions.sums]

    def add(self, features: Tensor, gradient: Tensor, *, floor: float) -> Tensor:
        """Add tokens: features, (tokens, features), and the gradient g of the output, (tokens, d).

        Returns the sensitivity of each token, ½ ‖g_t‖² / d, (tokens,). `floor` is added to it in the sums, so that
        tokens without influence on the predictions still count a little.
        """
        sensitivity = gradient.square().mean(1) / 2.0
        roots = (sensitivity[:, None] + floor).sqrt()
        wide = features.new_empty(len(features), features.shape[1] + 1)
        torch.mul(features, roots, out=wide[:, :-1])
        wide[:, -1:] = roots
        self.gram.add(wide)
        self.directions.add(gradient)
        return sensitivity

    def add_examples(self, features: Tensor, gradient: Tensor) -> None:
        """Add examples as a whole: the mean of their tokens' features, and the sum of their gradients."""
        self.add(features, gradient, floor=0.0)

    def removal_costs(self, weight: Tensor, width: int, examples: int, *, bias: bool) -> Tensor:
        """Loss per example (nats or squared error) of removing each unit; `weight` is the consumer's, (d, features)."""
        gram = self.gram.matrix.div_(examples)
        if bias:
            along = gram[:-1, -1] / gram[-1, -1].sqrt()  # the best bias subtracts the weighted mean of every feature
            gram[:-1, :-1].addr_(along, along, alpha=-1.0)
        directions = self.directions.matrix
        scale = directions.diagonal().mean()
        directions = directions / scale if scale > 0 else torch.zeros_like(directions)
        directions = (1.0 - ISOTROPIC_SHARE) * directions
        directions.diagonal().add_(ISOTROPIC_SHARE)
        return removal_costs(gram[:-1, :-1], cholesky_factor(directions, 0.0).T @ weight.double(), width)


def _sum_of_squares(features: Tensor, real: Tensor) -> Tensor:
    """Σ f² of each feature over the real tokens, (features,); a matrix product is the fastest way."""
    return (real[:, None].to(features.dtype) @ features.square()).sum((0, 1))
