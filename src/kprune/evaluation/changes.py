"""Examples on which two models answer differently, with both answers; embedders answer with the nearest text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kprune.data.labels import class_names, class_numbers, class_order
from kprune.data.rankings import are_rankings, rows_of_rankings
from kprune.data.tasks import EMBEDDING, Test
from kprune.evaluation.change_log import Change, ChangeLog, Changes, shortened
from kprune.evaluation.metrics import Array
from kprune.evaluation.token_changes import ChangedChoices, ChangedMaskedTokens, ChangedNextTokens
from kprune.models.outputs import (
    CAUSAL_LM,
    CLASSIFICATION,
    MASKED_LM,
    MULTI_LABEL,
    QUESTION_ANSWERING,
    REGRESSION,
    TOKEN_CLASSIFICATION,
    Prediction,
)

MOST_TEXTS = 1000
"""Texts among which an embedder's nearest is sought."""
MOST_TOKENS = 8
"""Differing tokens of one example that are named."""
NEAREST, ANSWER, VALUE = "nearest text", "answer", "value"


class _Classes(ChangeLog):
    """One class per example."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        order, _, are_named = class_order(self.config, self.test.labels)
        if self.test.labels:  # the data's names, where the checkpoint has none
            self.names = [self.test.labels[number] for number in order]
        elif self.test.references is not None and not are_named:  # the data's numbers: `1`, not `LABEL_1`
            self.names = [str(number) for number in order]
        self.chosen = np.zeros((2, len(self.examples)), dtype=np.int64)
        self.confidence = np.zeros((2, len(self.examples)))

    def add(self, ours: Prediction, theirs: Prediction) -> None:
        for which, prediction in enumerate((ours, theirs)):
            most = prediction.values.softmax(-1).max(-1)
            example = prediction.example.cpu().numpy()
            self.chosen[which, example] = most.indices.cpu().numpy()
            self.confidence[which, example] = most.values.cpu().double().numpy()

    def changes(self, most: int, answers: Sequence[Any]) -> Changes:
        differing = np.flatnonzero(self.chosen[0] != self.chosen[1])
        order = differing[np.argsort(-self.confidence[1, differing], kind="stable")]
        kept = tuple(
            Change(
                self._text(n),
                self.names[self.chosen[1, n]],
                self.names[self.chosen[0, n]],
                float(self.confidence[1, n]),
                float(self.confidence[0, n]),
                self._reference(n),
            )
            for n in order[:most].tolist()
        )
        return Changes(ANSWER, len(self.examples), len(differing), kept)

    @cached_property
    def _right(self) -> Array:
        """The numbers of the right classes, in the data's order."""
        return class_numbers(self.test, class_names(self.config))

    def _reference(self, number: int) -> str | None:
        """The right class, written like both answers."""
        return None if self.test.references is None else (self.test.labels or self.names)[self._right[number]]


class _RankedPairs(_Classes):
    """Pairs of query and passage, whose reference is a relevance and no class."""

    def _reference(self, number: int) -> str | None:
        return ChangeLog._reference(self, number)


class _Labels(ChangeLog):
    """A set of labels per example, each with a probability of its own; the confidence is the least sure label's."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.probability = np.zeros((2, len(self.examples), len(self.names)))

    def add(self, ours: Prediction, theirs: Prediction) -> None:
        for which, prediction in enumerate((ours, theirs)):
            place = prediction.example.cpu().numpy(), prediction.position.cpu().numpy()
            self.probability[which][place] = prediction.values.softmax(-1)[:, 1].cpu().double().numpy()

    def changes(self, most: int, answers: Sequence[Any]) -> Changes:
        chosen = self.probability > 0.5
        sure = np.maximum(self.probability, 1.0 - self.probability).min(-1)
        differing = np.flatnonzero((chosen[0] != chosen[1]).any(-1))
        order = differing[np.argsort(-sure[1, differing], kind="stable")]

        def named(which: int, n: int) -> str:
            return ", ".join(self.names[label] for label in np.flatnonzero(chosen[which, n])) or "none"

        kept = tuple(
            Change(self._text(n), named(1, n), named(0, n), float(sure[1, n]), float(sure[0, n]), self._reference(n))
            for n in order[:most].tolist()
        )
        return Changes(ANSWER, len(self.examples), len(differing), kept)


class _Values(ChangeLog):
    """One value per example: those that moved most."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.values = np.zeros((2, len(self.examples)))

    def add(self, ours: Prediction, theirs: Prediction) -> None:
        for which, prediction in enumerate((ours, theirs)):
            self.values[which, prediction.example.cpu().numpy()] = prediction.values[:, 0].cpu().double().numpy()

    def changes(self, most: int, answers: Sequence[Any]) -> Changes:
        gap = np.abs(self.values[0] - self.values[1])
        order = np.argsort(-gap, kind="stable")[:most].tolist()
        kept = tuple(
            Change(
                self._text(n), f"{self.values[1, n]:.3f}", f"{self.values[0, n]:.3f}", None, None, self._reference(n)
            )
            for n in order
        )
        return Changes(VALUE, len(gap), int((gap > 0).sum()), kept)

    def _reference(self, number: int) -> str | None:
        return None if self.test.references is None else str(self.test.references[number])


class _Tokens(ChangeLog):
    """A class per token: the tokens whose classes differ."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.differing: dict[int, list[tuple[int, int, int]]] = {}

    def add(self, ours: Prediction, theirs: Prediction) -> None:
        chosen = [each.values.argmax(-1).cpu() for each in (ours, theirs)]
        for row in (chosen[0] != chosen[1]).nonzero().squeeze(1).tolist():
            found = self.differing.setdefault(int(ours.example[row]), [])
            found.append((int(ours.position[row]), int(chosen[0][row]), int(chosen[1][row])))

    def changes(self, most: int, answers: Sequence[Any]) -> Changes | None:
        if not hasattr(self.tokenizer, "convert_ids_to_tokens"):
            return None
        order = sorted(self.differing, key=lambda n: (-len(self.differing[n]), n))
        kept = tuple(Change(self._text(n), self._named(n, 2), self._named(n, 1), None, None) for n in order[:most])
        return Changes(ANSWER, len(self.examples), len(order), kept)

    def _named(self, number: int, which: int) -> str:
        """The differing tokens with the classes that a model gives them."""
        ids = self.examples[number]["input_ids"]
        found = sorted(self.differing[number])
        parts = [
            f"{self.tokenizer.convert_ids_to_tokens(int(ids[each[0]]))}: {self.names[each[which]]}"
            for each in found[:MOST_TOKENS]
        ]
        return ", ".join(parts) + (f", {len(found) - MOST_TOKENS} more" if len(found) > MOST_TOKENS else "")


class _Spans(ChangeLog):
    """The answer's text to every question."""

    def changes(self, most: int, answers: Sequence[Any]) -> Changes:
        ours, theirs = (each.spans.texts(may_be_empty=each.may_be_empty) for each in answers)
        differing = [n for n, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
        kept = tuple(
            Change(
                self._text(n),
                shortened(theirs[n] or "no answer", n),
                shortened(ours[n] or "no answer", n),
                None,
                None,
                " / ".join(dict.fromkeys(answers[0].references[n])) or None if answers[0].references else None,
            )
            for n in differing[:most]
        )
        return Changes(ANSWER, len(ours), len(differing), kept)


class _Embeddings(ChangeLog):
    """The nearest other text of every text, among those of the test."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.vectors: list[dict[int, Tensor]] = [{}, {}]
        rows = self.test.rows
        is_similarity = self.test.references is not None
        order = zip(*rows, strict=True) if is_similarity else rows  # a similarity's first texts, then its second ones
        self.texts = [part for row in order for part in row]
        names = [shortened(text, n) if not isinstance(text, str) else text for n, text in enumerate(self.texts)]
        first = {name: n for n, name in reversed(list(enumerate(names)))}
        self.chosen = sorted(first.values())[:MOST_TEXTS]
        self._wanted = set(self.chosen)

    def add(self, ours: Prediction, theirs: Prediction) -> None:
        for known, prediction in zip(self.vectors, (ours, theirs), strict=True):
            for number, vector in zip(prediction.example.tolist(), prediction.values.cpu(), strict=True):
                if number in self._wanted:
                    known[number] = vector

    def changes(self, most: int, answers: Sequence[Any]) -> Changes | None:
        chosen = self.chosen
        if len(chosen) < 3:
            return None
        cosines = []
        for known in self.vectors:
            vectors = torch.stack([known[n] for n in chosen])
            cosines.append((vectors @ vectors.T).fill_diagonal_(-torch.inf))
        return self._changes(chosen, cosines[1].numpy(), [each.argmax(1).numpy() for each in cosines], most)

    def _changes(self, chosen: list[int], cosines: Array, nearest: list[Array], most: int) -> Changes:
        rows = np.arange(len(chosen))
        lost = cosines[rows, nearest[1]] - cosines[rows, nearest[0]]
        differing = np.flatnonzero(nearest[0] != nearest[1])
        order = differing[np.argsort(-lost[differing], kind="stable")]
        kept = tuple(
            Change(
                (shortened(self.texts[chosen[n]], n),),
                shortened(self.texts[chosen[nearest[1][n]]], n),
                shortened(self.texts[chosen[nearest[0][n]]], n),
                float(cosines[n, nearest[1][n]]),
                float(cosines[n, nearest[0][n]]),
            )
            for n in order[:most].tolist()
        )
        return Changes(NEAREST, len(chosen), len(differing), kept)


LOGS: dict[str, type[ChangeLog]] = {
    CLASSIFICATION.name: _Classes,
    MULTI_LABEL.name: _Labels,
    REGRESSION.name: _Values,
    TOKEN_CLASSIFICATION.name: _Tokens,
    QUESTION_ANSWERING.name: _Spans,
    EMBEDDING: _Embeddings,
    CAUSAL_LM.name: ChangedNextTokens,
    MASKED_LM.name: ChangedMaskedTokens,
}
"""What an answer is, by kind of model."""


def change_log(kind: str, test: Test, config: Any, examples: Sequence[Any], tokenizer: Any) -> ChangeLog:
    """An empty log for models of one kind; a reranker's examples are pairs of query and passage."""
    references = test.references
    if kind == CAUSAL_LM.name and references is not None:
        return ChangedChoices(test, config, examples, tokenizer)
    if are_rankings(references) and kind != EMBEDDING:
        pairs = rows_of_rankings(test.rows, references, in_pairs=True)
        test = replace(test, rows=pairs, references=[value for each in references for value in each.relevance])
        if kind == CLASSIFICATION.name:
            return _RankedPairs(test, config, examples, tokenizer)
    return LOGS.get(kind, ChangeLog)(test, config, examples, tokenizer)
