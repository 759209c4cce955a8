"""How alike two models' outputs are, example by example; needs no right answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from kprune.data.tasks import EMBEDDING
from kprune.evaluation.metrics import Array, Figure, figure
from kprune.maths.losses import divergence
from kprune.models.outputs import (
    CLASSIFICATION,
    CTC,
    ENCODER_STATES,
    MULTI_LABEL,
    TOKEN_CLASSIFICATION,
    OutputKind,
    Prediction,
)

KINDS_WITH_CLASSES = {each.name for each in (CLASSIFICATION, MULTI_LABEL, TOKEN_CLASSIFICATION, CTC)}
"""Kinds whose answers are classes, so that one of them can be the most common."""
NAMED_CLASSES = {CLASSIFICATION.name, TOKEN_CLASSIFICATION.name}
"""Kinds whose classes are those of `id2label`."""
KINDS_WITH_DIRECTIONS = {EMBEDDING, ENCODER_STATES.name}
"""Kinds whose outputs are normalised vectors."""

RARER_ANSWERS = "agreement on rarer answers"
"""Agreement on items (texts, tokens, frames) where a model's answer is not the second model's most common one."""
DOMINANT_SHARE = 0.9
"""Share of the most common answer above which plain agreement says little."""


class Likeness:
    """Likeness of two models' outputs: class agreement and divergence, cosine, or rank agreement and squared error."""

    def __init__(self, kind: OutputKind, examples: int) -> None:
        self.kind = kind
        self._agreement, self._divergence, self._weight = np.zeros((3, examples))
        self._values = np.zeros((2, examples))
        self._answers: list[Array] = []  # per batch: example, our answer and theirs, of every item

    def add(self, ours: Prediction, theirs: Prediction) -> None:
        """Add one batch of both models' predictions."""
        example = ours.example.cpu().numpy()
        if self.kind.is_distribution:
            answers = [each.values.argmax(-1) for each in (ours, theirs)]
            same = (answers[0] == answers[1]).float() * ours.weights
            lost = divergence(ours.values, theirs.values, ours.weights, 1.0)
            np.add.at(self._agreement, example, same.cpu().double().numpy())
            np.add.at(self._divergence, example, lost.cpu().double().numpy())
            np.add.at(self._weight, example, ours.weights.cpu().double().numpy())
            if self.kind.name in KINDS_WITH_CLASSES:
                self._answers.append(np.stack([example, *(each.cpu().numpy() for each in answers)]))
        elif self.kind.name in KINDS_WITH_DIRECTIONS:
            cosine = (ours.values * theirs.values).sum(-1) * ours.weights
            np.add.at(self._agreement, example, cosine.cpu().double().numpy())
        else:
            self._values[:, example] = torch.stack([ours.values[:, 0], theirs.values[:, 0]]).cpu().double().numpy()

    def figures(self) -> tuple[Figure, ...]:
        """The figures; the first is 100 where the outputs are equal."""
        unused = np.zeros(len(self._agreement))  # these metrics need no references
        if self.kind.is_distribution:
            return (
                figure("agreement", unused, (self._agreement / self._weight).round(6)),
                *self._rarer_answers(),
                figure("divergence", unused, self._divergence),
            )
        if self.kind.name in KINDS_WITH_DIRECTIONS:
            return (figure("cosine", unused, self._agreement),)
        return (
            replace(figure("spearman", self._values[1], self._values[0]), name="rank agreement"),
            figure("squared-error", unused, np.square(self._values[0] - self._values[1])),
        )

    def notes(self, classes: Sequence[str]) -> tuple[str, ...]:
        """A sentence where one answer dominates, so that plain agreement says little; `classes` are their names."""
        if not self._answers:
            return ()
        common, (_, ours, theirs) = self._most_common(), np.concatenate(self._answers, axis=1)
        share = float((theirs == common).mean())
        others = int(((ours != common) | (theirs != common)).sum())
        if share < DOMINANT_SHARE or not others:
            return ()
        has_name = self.kind.name in NAMED_CLASSES and common < len(classes)
        name = repr(classes[common]) if has_name else f"class {common}"
        return (
            f"one answer ({name}) is {share:.1%} of the second model's answers, so that agreement alone says "
            f"little; {RARER_ANSWERS} counts the {others:,} of {len(theirs):,} items with another answer.",
        )

    def _most_common(self) -> int:
        """The second model's most common answer."""
        return int(np.bincount(np.concatenate([theirs for _, _, theirs in self._answers])).argmax())

    def _rarer_answers(self) -> tuple[Figure, ...]:
        """Agreement on the items where a model's answer is not the second model's most common one; none: no figure.

        Examples with such items are resampled, and all items count alike.
        """
        if not self._answers:
            return ()
        common, (example, ours, theirs) = self._most_common(), np.concatenate(self._answers, axis=1)
        is_other = (ours != common) | (theirs != common)
        items, agreed = np.zeros((2, len(self._agreement)))
        np.add.at(items, example, is_other)
        np.add.at(agreed, example, is_other & (ours == theirs))
        present = items > 0
        if not present.any():
            return ()
        return (replace(figure("share", items[present], agreed[present]), name=RARER_ANSWERS),)
