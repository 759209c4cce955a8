"""Extractive question answering: windows over long contexts, best spans, and SQuAD's scoring rules."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kprune.errors import BadSample
from kprune.models.batches import Example

WINDOW = 384
"""Tokens of a window, with the question."""
STRIDE = 128
"""Tokens that consecutive windows share."""
CANDIDATES = 20
"""Starts, and ends, of which all pairs are tried."""
LONGEST_ANSWER = 30
"""Most tokens of an answer."""

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(answer: str) -> list[str]:
    """The words of an answer as SQuAD compares them: in lower case, without ASCII punctuation and articles."""
    return _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()


def grade(answer: str, references: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 of an answer, each the best over the references; without any, the answer should be empty."""
    words = normalise(answer)
    # A reference of only articles and punctuation has no words, and does not count as one.
    wanted = [reference for reference in map(normalise, references) if reference] or [[]]
    exact = max(float(words == reference) for reference in wanted)
    return exact, max(_word_f1(words, reference) for reference in wanted)


def _word_f1(words: list[str], reference: list[str]) -> float:
    if not words or not reference:
        return float(words == reference)
    common = sum((Counter(words) & Counter(reference)).values())
    return 2.0 * common / (len(words) + len(reference))


@dataclass(frozen=True)
class Windows:
    """Questions with their contexts, divided into windows that fit the model."""

    examples: list[Example]
    question: Tensor
    """The question's number for each window; (windows,)."""
    context: Tensor
    """The first and the last context token of each window; (windows, 2)."""
    encodings: Sequence[Any]
    """The tokenizer's encodings, which map tokens to text positions."""
    contexts: Sequence[str]

    def text(self, window: int, first: int, last: int) -> str:
        """The context's text from token `first` to token `last` of a window."""
        start, _ = self.encodings[window].offsets[first]
        _, stop = self.encodings[window].offsets[last]
        return self.contexts[int(self.question[window])][start:stop]


def windows_of(questions: Sequence[str], contexts: Sequence[str], tokenizer: Any, max_length: int) -> Windows:
    """Overlapping windows that cover every question's context."""
    if not getattr(tokenizer, "is_fast", False):
        raise BadSample(
            "question answering needs a fast tokenizer, and this model has none; add a tokenizer.json to its folder."
        )
    length = min(WINDOW, max_length)
    try:
        encoded = tokenizer(
            [question.strip() for question in questions],
            list(contexts),
            truncation="only_second",
            max_length=length,
            stride=min(STRIDE, length // 3),
            return_overflowing_tokens=True,
        )
    except Exception as error:  # the tokenizer raises a bare Exception
        raise BadSample(
            f"a question does not fit into {length} tokens with any of its context; shorten the question."
        ) from error
    question = torch.tensor(encoded["overflow_to_sample_mapping"])
    bounds = []
    for encoding in encoded.encodings:
        inside = [position for position, part in enumerate(encoding.sequence_ids) if part == 1]
        bounds.append((inside[0], inside[-1]) if inside else (0, -1))
    names = [name for name in encoded if name not in ("overflow_to_sample_mapping", "labels")]
    examples = [
        {name: torch.tensor(encoded[name][number]) for name in names} for number in range(len(encoded["input_ids"]))
    ]
    return Windows(examples, question, torch.tensor(bounds), encoded.encodings, contexts)


def best_spans(start: Tensor, end: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The most likely span of each window: its score, first token and last token; all (windows,).

    `start` and `end` are logits, (windows, length). `context` holds the first and the last allowed token, (windows, 2).
    """
    positions = torch.arange(start.shape[1], device=start.device)
    outside = (positions < context[:, :1]) | (positions > context[:, 1:])
    count = min(CANDIDATES, start.shape[1])
    starts, first = start.masked_fill(outside, -torch.inf).topk(count, dim=1)
    ends, last = end.masked_fill(outside, -torch.inf).topk(count, dim=1)
    length = last[:, None, :] - first[:, :, None] + 1
    scores = (starts[:, :, None] + ends[:, None, :]).masked_fill((length < 1) | (length > LONGEST_ANSWER), -torch.inf)
    score, pair = scores.flatten(1).max(1)
    rows = torch.arange(len(pair), device=pair.device)
    return score, first[rows, pair // count], last[rows, pair % count]


class AnswerSpans:
    """One model's best answer span per window, collected batch by batch."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        count = len(windows.examples)
        self.score = torch.full((count,), -torch.inf)
        self.null_score = torch.full((count,), torch.inf)
        self.span = torch.zeros(count, 2, dtype=torch.long)

    def add(self, logits: Tensor, window: Tensor) -> None:
        """Keep a batch's best spans: `logits` of starts and ends, (windows, 2, length), and the windows' numbers."""
        start, end = logits.float().unbind(1)
        window = window.cpu()
        score, first, last = best_spans(start, end, self.windows.context[window].to(start.device))
        self.score[window] = score.cpu()
        self.span[window] = torch.stack([first, last], dim=1).cpu()
        self.null_score[window] = (start[:, 0] + end[:, 0]).cpu()

    def texts(self, *, may_be_empty: bool) -> list[str]:
        """The best answer to every question over its windows; empty where that is allowed and scores higher."""
        questions = len(self.windows.contexts)
        best = torch.full((questions,), -torch.inf).scatter_reduce(0, self.windows.question, self.score, "amax")
        null = torch.full((questions,), torch.inf).scatter_reduce(0, self.windows.question, self.null_score, "amin")
        texts = [""] * questions
        for window in reversed(range(len(self.score))):  # the first of several equal windows wins
            question = int(self.windows.question[window])
            score = self.score[window]
            if score == best[question] and bool(score.isfinite()):
                texts[question] = self.windows.text(window, *self.span[window].tolist())
        return ["" if may_be_empty and bool(null[n] > best[n]) else text for n, text in enumerate(texts)]
