"""A test as a model sees it: tokenised, and with a way to turn outputs into answers that can be scored.

There is an exam for each kind of model. It holds the examples; each model that sits it fills in answers of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig

from kprune import squad
from kprune.data import MASKED_SHARE, Row
from kprune.errors import BadSample, KpruneError
from kprune.labels import class_names, class_numbers, class_order, value_references
from kprune.metrics import Array
from kprune.outputs import CLASSIFICATION, MASKED_LM, QUESTION_ANSWERING, REGRESSION, Prediction
from kprune.sample import Batch, Example
from kprune.tasks import EMBEDDING, Test

BLOCK = 512
"""Tokens of running text that a language model reads at once."""


class Answers:
    """One model's answers; of rows without right ones there is nothing to keep."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        """What a reader of the figures should know."""

    def note(self, prediction: Prediction, batch: Batch) -> None:
        """Keep what the model says of a batch."""

    def columns(self, metric: str) -> tuple[Array, Array]:
        """References and predictions for a metric, an entry per example."""
        raise KpruneError(f"there are no right answers to score by {metric}.")


class Exam:
    """A tokenised test; of rows without right answers there is nothing to score, but outputs can be compared."""

    metrics: tuple[str, ...] = ()
    """Names of the metrics that it can be scored by, the usual one first."""

    def __init__(self, test: Test, tokenizer: Any, max_length: int) -> None:
        self.examples = encode(test.rows, tokenizer, max_length)

    def start(self, config: PreTrainedConfig) -> Answers:
        """Answers to be filled in by the model of a config."""
        return Answers()


def encode(rows: Sequence[Row], tokenizer: Any, max_length: int) -> list[Example]:
    """Each row as the model's arguments, without padding."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    encoded = tokenizer(*columns, truncation=True, max_length=max_length)
    return [{name: torch.tensor(encoded[name][number]) for name in encoded} for number in range(len(rows))]


class Choices(Exam):
    """Classification: which of the classes."""

    metrics = ("accuracy", "f1", "macro-f1", "matthews")

    def __init__(self, test: Test, tokenizer: Any, max_length: int) -> None:
        super().__init__(test, tokenizer, max_length)
        self.test = test

    def start(self, config: PreTrainedConfig) -> Answers:
        return _Choices(self.test, config)


class _Choices(Answers):
    def __init__(self, test: Test, config: PreTrainedConfig) -> None:
        super().__init__()
        self.order, notes, self.are_named = class_order(config, test.labels)
        self.notes += notes
        self.references = class_numbers(test, class_names(config))
        self.chosen = np.zeros(len(test.rows), dtype=np.int64)

    def note(self, prediction: Prediction, batch: Batch) -> None:
        self.chosen[prediction.example.cpu().numpy()] = prediction.values.argmax(-1).cpu().numpy()

    def columns(self, metric: str) -> tuple[Array, Array]:
        if not self.are_named:
            self._look_for_a_better_order()
        return self.references, np.array(self.order)[self.chosen]

    def _look_for_a_better_order(self) -> None:
        """Note when the classes, which nobody named, would fit far better in another order."""
        from scipy.optimize import linear_sum_assignment

        self.are_named = True
        confusion = np.zeros((len(self.order), len(self.order)))
        np.add.at(confusion, (self.chosen, self.references), 1.0)
        classes, best = linear_sum_assignment(confusion, maximize=True)
        right, could_be = np.trace(confusion), confusion[classes, best].sum()
        if could_be - right > 0.1 * len(self.references):
            self.notes.append(
                f"the checkpoint does not name its classes, and in the order {best.tolist()} of the data's they would "
                f"be right {could_be / len(self.references):.0%} of the time instead of "
                f"{right / len(self.references):.0%}: name them in id2label of its config.json."
            )


class Values(Exam):
    """Regression: how much."""

    metrics = ("spearman", "pearson")

    def __init__(self, test: Test, tokenizer: Any, max_length: int) -> None:
        super().__init__(test, tokenizer, max_length)
        self.references = value_references(test)

    def start(self, config: PreTrainedConfig) -> Answers:
        return _Values(self.references)


class _Values(Answers):
    def __init__(self, references: Array) -> None:
        super().__init__()
        self.references = references
        self.values = np.zeros(len(references))

    def note(self, prediction: Prediction, batch: Batch) -> None:
        self.values[prediction.example.cpu().numpy()] = prediction.values[:, 0].cpu().numpy()

    def columns(self, metric: str) -> tuple[Array, Array]:
        return self.references, self.values


class Likenesses(Exam):
    """Pairs of texts whose embeddings should be as alike as people find the texts."""

    metrics = ("spearman", "pearson")

    def __init__(self, test: Test, tokenizer: Any, max_length: int) -> None:
        if len(test.rows[0]) != 2:
            raise BadSample(f"{test.name} has one text per row; likeness needs two: name two text columns.")
        columns = chain.from_iterable(zip(*test.rows, strict=True))  # all first texts, then all second ones
        self.examples = encode([(text,) for text in columns], tokenizer, max_length)
        self.references = value_references(test)

    def start(self, config: PreTrainedConfig) -> Answers:
        return _Likenesses(self.references, len(self.examples))


class _Likenesses(_Values):
    def __init__(self, references: Array, texts: int) -> None:
        super().__init__(references)
        self.embeddings: list[Tensor | None] = [None] * texts

    def note(self, prediction: Prediction, batch: Batch) -> None:
        for number, embedding in zip(prediction.example.tolist(), prediction.values.cpu(), strict=True):
            self.embeddings[number] = embedding

    def columns(self, metric: str) -> tuple[Array, Array]:
        both = torch.stack([embedding for embedding in self.embeddings if embedding is not None])
        first, second = both.unflatten(0, (2, -1))
        return self.references, (first * second).sum(1).double().numpy()


class Spans(Exam):
    """Question answering: which piece of the context."""

    def __init__(self, test: Test, tokenizer: Any, max_length: int) -> None:
        if len(test.rows[0]) != 2:
            raise BadSample(f"{test.name} has one text per row; name two columns, the question and the context.")
        questions, contexts = zip(*test.rows, strict=True)
        self.windows = squad.windows_of(questions, contexts, tokenizer, max_length)
        self.examples = self.windows.examples
        self.metrics = ("answer-f1", "exact-match") if test.references is not None else ()
        self.references = [_answers(answer, row, test.name) for row, answer in enumerate(test.references or ())]
        self.may_be_empty = test.may_be_empty or not all(self.references)

    def start(self, config: PreTrainedConfig) -> Answers:
        return _Spans(self.windows, self.references, self.may_be_empty)


def _answers(reference: Any, row: int, name: str) -> list[str]:
    """The texts of a reference: SQuAD's own {"text": […]}, a list, or one answer; none: there is no answer."""
    texts = reference.get("text") if isinstance(reference, dict) else reference
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadSample(
            f"row {row} of {name} has the answer {reference!r:.60}; write a text, a list of texts, or SQuAD's own form."
        )
    return [text for text in texts if squad.normalise(text)]


class _Spans(Answers):
    def __init__(self, windows: squad.Windows, references: list[list[str]], may_be_empty: bool) -> None:
        super().__init__()
        self.spans = squad.Answers(windows)
        self.references, self.may_be_empty = references, may_be_empty
        self._grades: Array | None = None

    def note(self, prediction: Prediction, batch: Batch) -> None:
        self.spans.note(prediction.values.unflatten(0, (-1, 2)), batch.example)

    def columns(self, metric: str) -> tuple[Array, Array]:
        if self._grades is None:
            texts = self.spans.texts(may_be_empty=self.may_be_empty)
            self._grades = np.array([squad.grade(*pair) for pair in zip(texts, self.references, strict=True)])
        return np.zeros(len(self._grades)), self._grades[:, 0 if metric == "exact-match" else 1]


class Blanks(Exam):
    """Masked language models: which token is hidden, in blocks of running text."""

    metrics = ("perplexity",)

    def __init__(self, test: Test, tokenizer: Any, max_length: int) -> None:
        before_and_after = tokenizer("")["input_ids"]
        half = len(before_and_after) // 2
        room = min(BLOCK, max_length) - len(before_and_after)
        texts = [text for row in test.rows for text in row]
        running = list(chain.from_iterable(tokenizer(texts, add_special_tokens=False)["input_ids"]))
        generator = torch.Generator().manual_seed(0)
        self.targets: list[Tensor] = []
        self.examples: list[Example] = []
        for start in range(0, len(running), room):
            block = running[start : start + room]
            ids = torch.tensor(before_and_after[:half] + block + before_and_after[half:])
            hidden = torch.rand(len(ids), generator=generator) < MASKED_SHARE
            hidden[:half] = False
            hidden[half + len(block) :] = False
            if hidden.any():
                self.targets.append(ids)
                self.examples.append(
                    {
                        "input_ids": ids.masked_fill(hidden, tokenizer.mask_token_id),
                        "attention_mask": torch.ones_like(ids),
                        "labels": ids.masked_fill(~hidden, -100),
                    }
                )
        if not self.examples:
            raise BadSample(f"{test.name} is too short to hide a token in; pass more text.")

    def start(self, config: PreTrainedConfig) -> Answers:
        return _Blanks(self.targets)


class _Blanks(Answers):
    def __init__(self, targets: list[Tensor]) -> None:
        super().__init__()
        self.targets = targets
        self.surprise, self.tokens = np.zeros(len(targets)), np.zeros(len(targets))

    def note(self, prediction: Prediction, batch: Batch) -> None:
        where = zip(prediction.example.tolist(), prediction.position.tolist(), strict=True)
        right = torch.tensor([int(self.targets[example][place]) for example, place in where])
        surprise = torch.nn.functional.cross_entropy(prediction.values.cpu(), right, reduction="none")
        example = prediction.example.cpu().numpy()
        np.add.at(self.surprise, example, surprise.double().numpy())
        np.add.at(self.tokens, example, 1.0)

    def columns(self, metric: str) -> tuple[Array, Array]:
        return self.tokens, self.surprise


EXAMS: dict[str, type[Exam]] = {
    CLASSIFICATION.name: Choices,
    REGRESSION.name: Values,
    EMBEDDING: Likenesses,
    QUESTION_ANSWERING.name: Spans,
    MASKED_LM.name: Blanks,
}
NEED_NO_REFERENCES = {QUESTION_ANSWERING.name, MASKED_LM.name}
"""Kinds whose rows need an encoding of their own even where no right answers are known."""


def exam_for(test: Test, kind: str, tokenizer: Any, max_length: int) -> Exam:
    """A test, tokenised for models of a kind."""
    if not test.rows:
        raise BadSample(f"{test.name} has no rows; pass some.")
    if test.references is None and kind not in NEED_NO_REFERENCES:
        if kind == EMBEDDING:  # embeds one text at a time
            test = replace(test, rows=[(text,) for row in test.rows for text in row])
        return Exam(test, tokenizer, max_length)
    if kind not in EXAMS:
        raise KpruneError(
            f"{kind} cannot be scored by labels; leave them out, and compare with the dense model (--against)."
        )
    return EXAMS[kind](test, tokenizer, max_length)
