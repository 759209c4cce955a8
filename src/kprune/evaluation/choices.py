"""Zero-shot multiple choice: a causal language model chooses the most likely continuation of a context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedConfig

from kprune.data.choices import CHOICE_METRICS, COLUMNS, Choices
from kprune.data.packing import added_tokens
from kprune.data.tasks import Test
from kprune.errors import BadSample, KpruneError
from kprune.evaluation.causal import TokenAnswers, next_token_example
from kprune.evaluation.metrics import Array
from kprune.evaluation.scorers import ModelAnswers, Scorer

NOTE = (
    "a choice is scored by the log-likelihood of its tokens after the context; accuracy-norm divides it by the "
    "choice's characters."
)


class ChoiceScorer(Scorer):
    """Every choice of every row as one input; the tokens of the choice are scored."""

    metrics = CHOICE_METRICS

    def __init__(self, test: Test, tokenizer: Any, max_length: int) -> None:
        self.choices = _references(test)
        pairs = [
            _split(context, choice)
            for (context, *_), choices in zip(test.rows, self.choices, strict=True)
            for choice in choices.texts
        ]
        contexts, wholes = (_tokenize(texts, tokenizer) for texts in zip(*pairs, strict=True))
        before = added_tokens(tokenizer)[0]
        start = before or [token for token in (tokenizer.bos_token_id, tokenizer.eos_token_id) if token is not None][:1]
        inputs = []
        for number, (context, whole) in enumerate(zip(contexts, wholes, strict=True)):
            tokens = [*(before if context else start), *whole]
            chosen = len(whole) - len(context)
            _require_room(pairs[number][1], tokens, chosen, max_length)
            tokens = tokens[-(max_length + 1) :]  # a long context loses its beginning
            inputs.append(next_token_example(tokens, len(tokens) - chosen))
        self.examples = [example for example, _ in inputs]
        self.targets = [targets for _, targets in inputs]

    def new_answers(self, config: PreTrainedConfig) -> ModelAnswers:
        return _ChoiceAnswers(self.targets, self.choices)


def _references(test: Test) -> list[Choices]:
    found = list(test.references or ())
    if not all(isinstance(reference, Choices) for reference in found):
        raise KpruneError(
            f"a causal language model cannot be scored on the labels of {test.name}; leave them out for perplexity, or "
            f"pass rows with {', '.join(COLUMNS)}."
        )
    return found


def _split(context: str, choice: str) -> tuple[str, str]:
    """The context without spaces at its end, and the whole text; spaces belong to the choice's first token."""
    stripped = context.rstrip()
    gap = context[len(stripped) :]
    if stripped and not gap and not choice[0].isspace():
        gap = " "
    return stripped, stripped + gap + choice


def _tokenize(texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    found: list[list[int]] = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    return found


def _require_room(text: str, tokens: list[int], chosen: int, max_length: int) -> None:
    """Raise if a choice has no tokens, none before it, or too many."""
    if chosen < 1:
        raise BadSample(f"the tokenizer has no tokens for the choice in {text!r:.60}; write other text.")
    if chosen > max_length:
        raise BadSample(
            f"the choice in {text!r:.60} has {chosen} tokens, and the model reads {max_length}; shorten it."
        )
    if chosen == len(tokens):
        raise BadSample(
            "a choice without a context needs a token before it, and the tokenizer has none; add a context."
        )


class _ChoiceAnswers(TokenAnswers):
    def __init__(self, targets: list[Tensor], choices: Sequence[Choices]) -> None:
        super().__init__(targets, NOTE)
        self.choices = choices

    def columns(self, metric: str) -> tuple[Array, Array]:
        lengths = np.array([len(text) for choices in self.choices for text in choices.texts])
        scores = -self.losses / (lengths if metric == "accuracy-norm" else 1)
        ends = np.cumsum([len(choices.texts) for choices in self.choices])
        chosen = [int(part.argmax()) for part in np.split(scores, ends[:-1])]
        return np.array([choices.answer for choices in self.choices]), np.array(chosen)
