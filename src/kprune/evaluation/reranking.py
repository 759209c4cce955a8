"""Reranking: the order in which a model puts the passages of a query."""

from __future__ import annotations

from math import comb

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig

from kprune.data.rankings import RANKING_METRICS, rows_of_rankings
from kprune.data.tasks import EMBEDDING, Test
from kprune.errors import KpruneError
from kprune.evaluation.metrics import Array
from kprune.evaluation.scorers import ModelAnswers, Scorer, encode
from kprune.models.batches import Batch
from kprune.models.outputs import CLASSIFICATION, REGRESSION, Prediction

CUTOFF = 10
"""Passages that are looked at, from the best."""


def ndcg(scores: Array, relevance: Array, cutoff: int = CUTOFF) -> float:
    """Normalised discounted cumulative gain of the best passages: Σ relevance / log₂(rank + 1) over its maximum.

    Passages with equal scores get the mean gain of their ranks: their order is not the model's.
    """
    discounts = np.zeros(len(scores))
    discounts[:cutoff] = 1 / np.log2(np.arange(2, len(scores[:cutoff]) + 2))
    best = float(np.sort(relevance)[::-1] @ discounts)
    gained, start = 0.0, 0
    for score in np.unique(scores)[::-1]:
        tied = scores == score
        end = start + int(tied.sum())
        gained += float(relevance[tied].mean() * discounts[start:end].sum())
        start = end
    return gained / best if best else 0.0


def reciprocal_rank(scores: Array, relevance: Array, cutoff: int = CUTOFF) -> float:
    """1 / the rank of the first relevant passage, 0 beyond the cutoff; the mean over orders of equal scores."""
    above = 0
    for score in np.unique(scores)[::-1]:
        tied = scores == score
        size, relevant = int(tied.sum()), int((relevance[tied] > 0).sum())
        if relevant:
            # The chance that the first of the relevant ones is at this place among the tied ones.
            chances = [comb(size - place - 1, relevant - 1) / comb(size, relevant) for place in range(size)]
            ranks = range(above + 1, above + size + 1)
            return sum(chance / rank for chance, rank in zip(chances, ranks, strict=True) if rank <= cutoff)
        above += size
    return 0.0


class RankingScorer(Scorer):
    """Passages against their relevance, query by query: pairs for a reranker, single texts for an embedding model."""

    metrics = RANKING_METRICS

    def __init__(self, test: Test, tokenizer: object, max_length: int, kind: str) -> None:
        if kind not in (REGRESSION.name, CLASSIFICATION.name, EMBEDDING):
            raise KpruneError(
                f"{test.name} ranks passages, which a model for {kind} does not score; pass a reranker (CrossEncoder) "
                "or an embedding model."
            )
        self.kind, self.passages, self.name = kind, list(test.references or ()), test.name
        self.scored = [number for number, each in enumerate(self.passages) if each.has_relevant]
        rows = rows_of_rankings(test.rows, self.passages, in_pairs=kind != EMBEDDING)
        self.examples = encode(rows, tokenizer, max_length)
        self.queries = np.repeat(np.arange(len(self.passages)), [len(each.texts) for each in self.passages])

    def sizes(self, rows: int) -> tuple[int, int]:
        return len(self.scored), len(self.scored)

    def new_answers(self, config: PreTrainedConfig) -> ModelAnswers:
        labels = config.num_labels or 0
        if self.kind == CLASSIFICATION.name and labels != 2:
            raise KpruneError(
                f"the model has {labels} classes, and passages are ranked by one value, or by the second of two "
                "classes; pass a reranker."
            )
        answers = _RankingAnswers(self)
        skipped = len(self.passages) - len(self.scored)
        if skipped:
            answers.notes.append(
                f"{skipped:,} of {len(self.passages):,} queries of {self.name} have no relevant passage and are not "
                "scored."
            )
        alike = sum(len(set(self.passages[number].relevance)) == 1 for number in self.scored)
        if alike:
            answers.notes.append(
                f"the passages of {alike:,} of {len(self.scored):,} queries are equally relevant, so that every "
                "order of them is right; add passages of relevance 0."
            )
        return answers


class _RankingAnswers(ModelAnswers):
    def __init__(self, scorer: RankingScorer) -> None:
        super().__init__()
        self.scorer = scorer
        self.outputs: list[Tensor | None] = [None] * len(scorer.examples)

    def add(self, prediction: Prediction, batch: Batch) -> None:
        for number, values in zip(prediction.example.tolist(), prediction.values.cpu(), strict=True):
            self.outputs[number] = values

    def columns(self, metric: str) -> tuple[Array, Array]:
        score = ndcg if metric == RANKING_METRICS[0] else reciprocal_rank
        values, queries = self._scores(), self.scorer.queries
        found = [
            score(values[queries == number], np.array(self.scorer.passages[number].relevance))
            for number in self.scorer.scored
        ]
        return np.zeros(len(found)), np.array(found)

    def _scores(self) -> Array:
        """The score of every passage, query by query."""
        outputs = torch.stack([values for values in self.outputs if values is not None]).double()
        if self.scorer.kind == EMBEDDING:
            count = len(self.scorer.passages)
            queries, passages = outputs[:count], outputs[count:]
            return np.asarray((queries[torch.from_numpy(self.scorer.queries)] * passages).sum(1).numpy())
        return np.asarray((outputs[:, -1] - (outputs[:, 0] if outputs.shape[1] == 2 else 0.0)).numpy())
