"""How alike two models' outputs are, example by example; needs no right answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from kprune.data.tasks import EMBEDDING
from kprune.evaluation.metrics import Figure, figure
from kprune.maths.losses import divergence
from kprune.models.outputs import OutputKind, Prediction


class Likeness:
    """Likeness of two models' outputs: class agreement and divergence, cosine, or rank agreement and squared error."""

    def __init__(self, kind: OutputKind, examples: int) -> None:
        self.kind = kind
        self._agreement, self._divergence, self._weight = np.zeros((3, examples))
        self._values = np.zeros((2, examples))

    def add(self, ours: Prediction, theirs: Prediction) -> None:
        """Add one batch of both models' predictions."""
        example = ours.example.cpu().numpy()
        if self.kind.is_distribution:
            same = (ours.values.argmax(-1) == theirs.values.argmax(-1)).float() * ours.weights
            lost = divergence(ours.values, theirs.values, ours.weights, 1.0)
            np.add.at(self._agreement, example, same.cpu().double().numpy())
            np.add.at(self._divergence, example, lost.cpu().double().numpy())
            np.add.at(self._weight, example, ours.weights.cpu().double().numpy())
        elif self.kind.name == EMBEDDING:
            self._agreement[example] = (ours.values * theirs.values).sum(-1).cpu().double().numpy()
        else:
            self._values[:, example] = torch.stack([ours.values[:, 0], theirs.values[:, 0]]).cpu().double().numpy()

    def figures(self) -> tuple[Figure, ...]:
        """The figures; the first is 100 where the outputs are equal."""
        unused = np.zeros(len(self._agreement))  # these metrics need no references
        if self.kind.is_distribution:
            return (
                figure("agreement", unused, (self._agreement / self._weight).round(6)),
                figure("divergence", unused, self._divergence),
            )
        if self.kind.name == EMBEDDING:
            return (figure("cosine", unused, self._agreement),)
        return (
            replace(figure("spearman", self._values[1], self._values[0]), name="rank agreement"),
            figure("squared-error", unused, np.square(self._values[0] - self._values[1])),
        )
