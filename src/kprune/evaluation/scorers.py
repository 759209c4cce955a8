"""Scorers: a test tokenised for one kind of model, and the answers that its metrics compare.

There is one scorer per kind of model. A scorer holds the examples; each model gets its own `ModelAnswers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig

from kprune.data.calibration import MASKED_SHARE
from kprune.data.labels import class_names, class_numbers, class_order, value_references
from kprune.data.processing import MediaReader
from kprune.data.rows import Row
from kprune.data.tasks import EMBEDDING, Test
from kprune.errors import BadSample, KpruneError
from kprune.evaluation import squad
from kprune.evaluation.metrics import ANSWERS, CLASSES, TOKENS, VALUES, Array, metrics_of
from kprune.models.batches import Batch, Example
from kprune.models.outputs import CLASSIFICATION, MASKED_LM, QUESTION_ANSWERING, REGRESSION, Prediction

BLOCK_TOKENS = 512
"""Tokens of running text in one input of a masked language model."""


class ModelAnswers:
    """One model's answers, collected batch by batch; this base class is for tests without references."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        """Remarks for the reader of the figures."""

    def add(self, prediction: Prediction, batch: Batch) -> None:
        """Keep the model's answers to a batch."""

    def columns(self, metric: str) -> tuple[Array, Array]:
        """References and predictions for a metric, one entry per example."""
        raise KpruneError(f"there are no right answers to compute {metric} with; name the column that has them.")


class Scorer:
    """A tokenised test; this base class is for tests without references, where only outputs are compared."""

    metrics: tuple[str, ...] = ()
    """Names of the metrics that the scorer supports, the default first."""

    def __init__(self, test: Test, tokenizer: Any, max_length: int) -> None:
        self.examples = encode(test.rows, tokenizer, max_length)

    def sizes(self, rows: int) -> tuple[int, int]:
        """Examples that were scored, and units that intervals resample, of a test with `rows` rows."""
        return rows, rows

    def new_answers(self, config: PreTrainedConfig) -> ModelAnswers:
        """Empty answers for the model with this config."""
        return ModelAnswers()


def encode(rows: Sequence[Row], tokenizer: Any, max_length: int) -> list[Example]:
    """Each row as the model's arguments, without padding; a `MediaReader` takes the place of a tokenizer."""
    if isinstance(tokenizer, MediaReader):
        return tokenizer.encode(rows)
    columns = [list(column) for column in zip(*rows, strict=True)]
    encoded = tokenizer(*columns, truncation=True, max_length=max_length)
    return [{name: torch.tensor(encoded[name][number]) for name in encoded} for number in range(len(rows))]


class ClassScorer(Scorer):
    """Classification: the most likely class against the reference class."""

    metrics = metrics_of(CLASSES)

    def __init__(self, test: Test, tokenizer: Any, max_length: int) -> None:
        super().__init__(test, tokenizer, max_length)
        self.test = test

    def new_answers(self, config: PreTrainedConfig) -> ModelAnswers:
        return _ClassAnswers(self.test, config)


class _ClassAnswers(ModelAnswers):
    def __init__(self, test: Test, config: PreTrainedConfig) -> None:
        super().__init__()
        self.order, notes, are_named = class_order(config, test.labels)
        self.notes += notes
        self.must_check_order = not are_named
        self.references = class_numbers(test, class_names(config))
        self.chosen = np.zeros(len(test.rows), dtype=np.int64)

    def add(self, prediction: Prediction, batch: Batch) -> None:
        self.chosen[prediction.example.cpu().numpy()] = prediction.values.argmax(-1).cpu().numpy()

    def columns(self, metric: str) -> tuple[Array, Array]:
        if self.must_check_order:
            self._check_order()
            self.must_check_order = False
        return self.references, np.array(self.order)[self.chosen]

    def _check_order(self) -> None:
        """Add a note if another order of the unnamed classes would be right far more often."""
        from scipy.optimize import linear_sum_assignment

        confusion = np.zeros((len(self.order), len(self.order)))
        np.add.at(confusion, (self.chosen, self.references), 1.0)
        classes, best = linear_sum_assignment(confusion, maximize=True)
        total = len(self.references)
        right, best_right = np.trace(confusion), confusion[classes, best].sum()
        if best_right - right > 0.1 * total:
            self.notes.append(
                f"the checkpoint does not name its classes. In the order {best.tolist()} of the data's classes they "
                f"would be right {best_right / total:.0%} of the time instead of {right / total:.0%}: "
                "name them in id2label of its config.json."
            )


def _notes_on_values(references: Array) -> list[str]:
    """A note if all references are equal: a correlation is then undefined, and shown as 0."""
    if len(references) < 2 or (references != references[0]).any():
        return []
    return [
        f"all labels are {references[0]:g}, so that no correlation is defined: it is shown as 0. Name other labels."
    ]


class ValueScorer(Scorer):
    """Regression: the predicted value against the reference value."""

    metrics = metrics_of(VALUES)

    def __init__(self, test: Test, tokenizer: Any, max_length: int) -> None:
        super().__init__(test, tokenizer, max_length)
        self.references = value_references(test)

    def new_answers(self, config: PreTrainedConfig) -> ModelAnswers:
        return _ValueAnswers(self.references)


class _ValueAnswers(ModelAnswers):
    def __init__(self, references: Array) -> None:
        super().__init__()
        self.references = references
        self.notes += _notes_on_values(references)
        self.values = np.zeros(len(references))

    def add(self, prediction: Prediction, batch: Batch) -> None:
        self.values[prediction.example.cpu().numpy()] = prediction.values[:, 0].cpu().numpy()

    def columns(self, metric: str) -> tuple[Array, Array]:
        return self.references, self.values


class SimilarityScorer(Scorer):
    """Embeddings of text pairs: their cosine against the reference similarity."""

    metrics = metrics_of(VALUES)

    def __init__(self, test: Test, tokenizer: Any, max_length: int) -> None:
        if len(test.rows[0]) != 2:
            raise BadSample(f"{test.name} has one text per row, but similarity needs two; name two text columns.")
        texts = chain.from_iterable(zip(*test.rows, strict=True))  # all first texts, then all second texts
        self.examples = encode([(text,) for text in texts], tokenizer, max_length)
        self.references = value_references(test)

    def new_answers(self, config: PreTrainedConfig) -> ModelAnswers:
        return _SimilarityAnswers(self.references, len(self.examples))


class _SimilarityAnswers(ModelAnswers):
    def __init__(self, references: Array, texts: int) -> None:
        super().__init__()
        self.references = references
        self.notes += _notes_on_values(references)
        self.embeddings: list[Tensor | None] = [None] * texts

    def add(self, prediction: Prediction, batch: Batch) -> None:
        for number, embedding in zip(prediction.example.tolist(), prediction.values.cpu(), strict=True):
            self.embeddings[number] = embedding

    def columns(self, metric: str) -> tuple[Array, Array]:
        both = torch.stack([embedding for embedding in self.embeddings if embedding is not None])
        first, second = both.unflatten(0, (2, -1))
        return self.references, (first * second).sum(1).double().numpy()


class SpanScorer(Scorer):
    """Question answering: the best span of the context against the reference answers."""

    def __init__(self, test: Test, tokenizer: Any, max_length: int) -> None:
        if len(test.rows[0]) != 2:
            raise BadSample(f"{test.name} has one text per row; name two columns, the question and the context.")
        questions, contexts = zip(*test.rows, strict=True)
        self.windows = squad.windows_of(questions, contexts, tokenizer, max_length)
        self.examples = self.windows.examples
        self.metrics = metrics_of(ANSWERS) if test.references is not None else ()
        self.references = [
            _answer_texts(reference, row, test.name) for row, reference in enumerate(test.references or ())
        ]
        self.may_be_empty = test.may_be_empty or not all(self.references)

    def new_answers(self, config: PreTrainedConfig) -> ModelAnswers:
        return _SpanAnswers(self.windows, self.references, self.may_be_empty)


def _answer_texts(reference: Any, row: int, name: str) -> list[str]:
    """The texts of a reference: SQuAD's {"text": […]}, a list, or one text; an empty list means no answer."""
    texts = reference.get("text") if isinstance(reference, dict) else reference
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadSample(
            f"row {row} of {name} has the answer {reference!r:.60}; write a text, a list of texts, or SQuAD's format."
        )
    return [text for text in texts if squad.normalise(text)]


class _SpanAnswers(ModelAnswers):
    def __init__(self, windows: squad.Windows, references: list[list[str]], may_be_empty: bool) -> None:
        super().__init__()
        self.spans = squad.AnswerSpans(windows)
        self.references, self.may_be_empty = references, may_be_empty
        self._grades: Array | None = None

    def add(self, prediction: Prediction, batch: Batch) -> None:
        self.spans.add(prediction.values.unflatten(0, (-1, 2)), batch.example)

    def columns(self, metric: str) -> tuple[Array, Array]:
        if self._grades is None:
            texts = self.spans.texts(may_be_empty=self.may_be_empty)
            self._grades = np.array([squad.grade(*pair) for pair in zip(texts, self.references, strict=True)])
        return np.zeros(len(self._grades)), self._grades[:, 0 if metric == "exact-match" else 1]


class MaskedTokenScorer(Scorer):
    """Masked language models: the loss at masked tokens, in blocks of running text."""

    metrics = metrics_of(TOKENS)

    def __init__(self, test: Test, tokenizer: Any, max_length: int) -> None:
        special = tokenizer("")["input_ids"]
        half = len(special) // 2
        room = min(BLOCK_TOKENS, max_length) - len(special)
        texts = [text for row in test.rows for text in row if text.strip()]
        most = test.windows.most
        pieces = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in _parts(texts))
        running = list(islice(chain.from_iterable(chain.from_iterable(pieces)), most and most * room))
        generator = torch.Generator().manual_seed(0)
        self.targets: list[Tensor] = []
        self.examples: list[Example] = []
        for start in range(0, len(running), room):
            block = running[start : start + room]
            ids = torch.tensor(special[:half] + block + special[half:])
            masked = torch.rand(len(ids), generator=generator) < MASKED_SHARE
            masked[:half] = False
            masked[half + len(block) :] = False
            if masked.any():
                self.targets.append(ids)
                self.examples.append(
                    {
                        "input_ids": ids.masked_fill(masked, tokenizer.mask_token_id),
                        "attention_mask": torch.ones_like(ids),
                        "labels": ids.masked_fill(~masked, -100),
                    }
                )
        if not self.examples:
            raise BadSample(f"{test.name} is too short: no token was masked; pass more text.")

    def sizes(self, rows: int) -> tuple[int, int]:
        return rows, len(self.examples)

    def new_answers(self, config: PreTrainedConfig) -> ModelAnswers:
        return _MaskedTokenAnswers(self.targets)


def _parts(texts: Sequence[str], size: int = 1000) -> Iterator[list[str]]:
    """The texts in parts: those beyond the last block need not be tokenised."""
    for start in range(0, len(texts), size):
        yield list(texts[start : start + size])


class _MaskedTokenAnswers(ModelAnswers):
    def __init__(self, targets: list[Tensor]) -> None:
        super().__init__()
        self.targets = targets
        self.losses, self.tokens = np.zeros(len(targets)), np.zeros(len(targets))

    def add(self, prediction: Prediction, batch: Batch) -> None:
        masked = zip(prediction.example.tolist(), prediction.position.tolist(), strict=True)
        target = torch.tensor([int(self.targets[example][position]) for example, position in masked])
        loss = torch.nn.functional.cross_entropy(prediction.values.cpu(), target, reduction="none")
        example = prediction.example.cpu().numpy()
        np.add.at(self.losses, example, loss.double().numpy())
        np.add.at(self.tokens, example, 1.0)

    def columns(self, metric: str) -> tuple[Array, Array]:
        return self.tokens, self.losses


SCORERS: dict[str, type[Scorer]] = {
    CLASSIFICATION.name: ClassScorer,
    REGRESSION.name: ValueScorer,
    EMBEDDING: SimilarityScorer,
    QUESTION_ANSWERING.name: SpanScorer,
    MASKED_LM.name: MaskedTokenScorer,
}
KINDS_WITH_OWN_ENCODING = {QUESTION_ANSWERING.name, MASKED_LM.name}
"""Kinds whose scorer encodes rows in its own way, and so is needed even without references."""


def scorer_for(test: Test, kind: str, tokenizer: Any, max_length: int) -> Scorer:
    """The scorer of a test for models of one kind."""
    if not test.rows:
        raise BadSample(f"{test.name} has no rows; pass at least one.")
    if test.references is None and kind not in KINDS_WITH_OWN_ENCODING:
        if kind == EMBEDDING:  # an embedding model reads one text at a time
            test = replace(test, rows=[(text,) for row in test.rows for text in row])
        return Scorer(test, tokenizer, max_length)
    if kind not in SCORERS:
        raise KpruneError(
            f"{kind} cannot be scored by labels; leave them out, and compare with the dense model (--against)."
        )
    return SCORERS[kind](test, tokenizer, max_length)
