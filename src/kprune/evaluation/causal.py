"""Causal language models: the loss of every next token, without predictions of a whole text in memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig, PreTrainedModel

from kprune.data.tasks import Test
from kprune.data.windows import cut_text
from kprune.evaluation.metrics import TOKENS, Array, metrics_of
from kprune.evaluation.predictions import BATCH_TOKENS, VOCABULARY_BATCH_TOKENS, PredictionRun, require_numbers
from kprune.evaluation.scorers import ModelAnswers, Scorer
from kprune.models.batches import Batch, Example
from kprune.models.outputs import Prediction
from kprune.models.passes import call, forward, forward_and_top

PIECE = 2**24
"""Logits of one piece of a batch: 64 MB, of which several copies are made."""

Head = Callable[[Tensor], Tensor]
"""Logits at some positions of a batch, (examples, positions, vocabulary)."""


class CausalRun(PredictionRun):
    """Runs causal language models piece by piece: of a batch, the logits of a few positions exist at a time.

    Positions to predict are those with a label; the label of a position is the next token.
    """

    def batch_tokens(self) -> int:
        return BATCH_TOKENS if all(map(_has_chunked_head, self.models)) else VOCABULARY_BATCH_TOKENS

    def predictions(self, number: int) -> Iterator[list[Prediction]]:
        batch = self.batches[number]
        assert batch.predicted is not None
        positions = batch.predicted.any(0).nonzero().squeeze(1)
        per_piece = max(1, PIECE // (len(batch.example) * self.models[0].config.vocab_size))
        heads = [self._timed(_head, model, batch) for model in self.models]
        for piece in positions.split(per_piece):
            yield [_read(self._timed(head, piece), batch, piece) for head in heads]

    def _timed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        started = perf_counter()
        result = function(*arguments)
        self.forward_seconds += perf_counter() - started
        return result


def _has_chunked_head(model: PreTrainedModel) -> bool:
    """Whether the model can compute its logits at chosen positions; an exported graph cannot."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def _head(model: PreTrainedModel, batch: Batch) -> Head:
    """Run the layers once; the returned function runs the head on their output."""
    if not _has_chunked_head(model):
        logits = call(model, batch).logits
        return lambda positions: logits[:, positions]
    _, top = forward_and_top(model, _keeping(batch, batch.example.new_zeros(1)))
    layers = model.config.num_hidden_layers
    return lambda positions: forward(model, _keeping(batch, positions), start=layers, stream=top).logits


def _keeping(batch: Batch, positions: Tensor) -> Batch:
    """The batch with logits at these positions only."""
    return replace(batch, inputs={**batch.inputs, "logits_to_keep": positions})


def _read(logits: Tensor, batch: Batch, positions: Tensor) -> Prediction:
    """One row per predicted token; the weights of all of an example's tokens sum to 1."""
    assert batch.predicted is not None
    row, column = batch.predicted[:, positions].nonzero(as_tuple=True)
    prediction = Prediction(
        values=logits[row, column].float(),
        weights=1.0 / batch.predicted.sum(1)[row].float(),
        example=batch.example[row],
        position=positions[column],
    )
    require_numbers(prediction)
    return prediction


def next_token_example(tokens: list[int], first_scored: int) -> tuple[Example, Tensor]:
    """Tokens as inputs whose labels are the next tokens, from the token with the number `first_scored`; and these."""
    ids = torch.tensor(tokens)
    is_scored = torch.arange(1, len(ids)) >= first_scored
    labels = ids[1:].masked_fill(~is_scored, -100)
    return {"input_ids": ids[:-1], "attention_mask": torch.ones_like(ids[:-1]), "labels": labels}, ids[1:]


class PerplexityScorer(Scorer):
    """Causal language models: the loss of every next token, in windows of running text."""

    metrics = metrics_of(TOKENS)

    def __init__(self, test: Test, tokenizer: Any, max_length: int) -> None:
        texts = [text for row in test.rows for text in row]
        cut = cut_text(texts, tokenizer, test.windows, max_length, test.name)
        pairs = [next_token_example(tokens, cut.first_scored(n)) for n, tokens in enumerate(cut.windows)]
        self.examples = [example for example, _ in pairs]
        self.targets = [targets for _, targets in pairs]
        count = len(cut.windows)
        self.note = (
            f"perplexity of {count:,} window{'s' * (count != 1)} of {cut.length:,} tokens with a stride of "
            f"{cut.stride:,}; rows are joined with a blank line, a window's first token is not predicted"
            + (f", and the last {cut.rest:,} tokens fill no window." if cut.rest else ".")
        )

    def sizes(self, rows: int) -> tuple[int, int]:
        return len(self.examples), len(self.examples)

    def new_answers(self, config: PreTrainedConfig) -> ModelAnswers:
        return TokenAnswers(self.targets, self.note)


class TokenAnswers(ModelAnswers):
    """The summed loss of each input's scored tokens, and their number."""

    def __init__(self, targets: list[Tensor], note: str) -> None:
        super().__init__()
        self.notes.append(note)
        self.targets = pad_sequence(targets, batch_first=True)
        self.losses, self.tokens = np.zeros(len(targets)), np.zeros(len(targets))

    def add(self, prediction: Prediction, batch: Batch) -> None:
        target = self.targets[prediction.example.cpu(), prediction.position.cpu()].to(prediction.values.device)
        loss = torch.nn.functional.cross_entropy(prediction.values, target, reduction="none")
        example = prediction.example.cpu().numpy()
        np.add.at(self.losses, example, loss.cpu().double().numpy())
        np.add.at(self.tokens, example, 1.0)

    def columns(self, metric: str) -> tuple[Array, Array]:
        return self.tokens, self.losses
