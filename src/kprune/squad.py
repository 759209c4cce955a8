"""Answers cut out of a context: windows over long contexts, the best span, and SQuAD's own scoring rules."""

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
from kprune.sample import Example

WINDOW = 384
STRIDE = 128
"""Tokens that neighbouring windows share."""
BEST = 20
"""Starts, and ends, that are tried with each other."""
LONGEST_ANSWER = 30

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(answer: str) -> list[str]:
    """The words of an answer as SQuAD compares them: lower case, no ASCII punctuation, no articles."""
    return _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()


def grade(answer: str, references: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 of an answer, each against the reference that suits it best; none: it should be empty."""
    words = normalise(answer)
    # References of articles and punctuation alone say nothing.
    wanted = [found for found in map(normalise, references) if found] or [[]]
    return max(float(words == reference) for reference in wanted), max(_overlap(words, ref) for ref in wanted)


def _overlap(words: list[str], reference: list[str]) -> float:
    if not words or not reference:
        return float(words == reference)
    common = sum((Counter(words) & Counter(reference)).values())
    return 2.0 * common / (len(words) + len(reference))


@dataclass(frozen=True)
class Windows:
    """Questions with their contexts, cut into windows that fit the model."""

    examples: list[Example]
    question: Tensor
    """The question that a window belongs to; (windows,)."""
    context: Tensor
    """First and last token of the context in a window; (windows, 2)."""
    encodings: Sequence[Any]
    """The tokenizer's own, which know where in the text a token lies."""
    contexts: Sequence[str]

    def text(self, window: int, first: int, last: int) -> str:
        """What the tokens first..last of a window stand for."""
        start, _ = self.encodings[window].offsets[first]
        _, stop = self.encodings[window].offsets[last]
        return self.contexts[int(self.question[window])][start:stop]


def windows_of(questions: Sequence[str], contexts: Sequence[str], tokenizer: Any, max_length: int) -> Windows:
    """Every question with as many overlapping windows as its context needs."""
    if not getattr(tokenizer, "is_fast", False):
        raise BadSample("answers are cut out of the text by a fast tokenizer; this model has none (no tokenizer.json).")
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
    except Exception as error:  # the tokenizer's own panic has no class of its own
        raise BadSample(f"a question does not fit into {length} tokens with any context; shorten it.") from error
    question = torch.tensor(encoded["overflow_to_sample_mapping"])
    bounds = []
    for encoding in encoded.encodings:
        of_context = [place for place, part in enumerate(encoding.sequence_ids) if part == 1]
        bounds.append((of_context[0], of_context[-1]) if of_context else (0, -1))
    names = [name for name in encoded if name not in ("overflow_to_sample_mapping", "labels")]
    examples = [
        {name: torch.tensor(encoded[name][number]) for name in names} for number in range(len(encoded["input_ids"]))
    ]
    return Windows(examples, question, torch.tensor(bounds), encoded.encodings, contexts)


def best_spans(start: Tensor, end: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest span of each window: its score, first and last token; all (windows,).

    `start` and `end` are logits, (windows, length); `context` the first and last token allowed, (windows, 2).
    """
    places = torch.arange(start.shape[1], device=start.device)
    barred = (places < context[:, :1]) | (places > context[:, 1:])
    best = min(BEST, start.shape[1])
    starts, first = start.masked_fill(barred, -torch.inf).topk(best, dim=1)
    ends, last = end.masked_fill(barred, -torch.inf).topk(best, dim=1)
    length = last[:, None, :] - first[:, :, None] + 1
    scores = (starts[:, :, None] + ends[:, None, :]).masked_fill((length < 1) | (length > LONGEST_ANSWER), -torch.inf)
    score, pair = scores.flatten(1).max(1)
    rows = torch.arange(len(pair), device=pair.device)
    return score, first[rows, pair // best], last[rows, pair % best]


class Answers:
    """One model's answers, gathered batch by batch."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        count = len(windows.examples)
        self.score = torch.full((count,), -torch.inf)
        self.null = torch.full((count,), torch.inf)
        self.span = torch.zeros(count, 2, dtype=torch.long)

    def note(self, logits: Tensor, window: Tensor) -> None:
        """Keep what a batch says: `logits` of starts and ends, (windows, 2, length), of the windows by number."""
        start, end = logits.float().unbind(1)
        window = window.cpu()
        score, first, last = best_spans(start, end, self.windows.context[window].to(start.device))
        self.score[window] = score.cpu()
        self.span[window] = torch.stack([first, last], dim=1).cpu()
        self.null[window] = (start[:, 0] + end[:, 0]).cpu()

    def texts(self, *, may_be_empty: bool) -> list[str]:
        """The best answer to every question over its windows; empty where that is likelier, if it may be."""
        questions = len(self.windows.contexts)
        best = torch.full((questions,), -torch.inf).scatter_reduce(0, self.windows.question, self.score, "amax")
        null = torch.full((questions,), torch.inf).scatter_reduce(0, self.windows.question, self.null, "amin")
        found = [""] * questions
        for window in range(len(self.score) - 1, -1, -1):  # of equal windows the first has the last word
            question = int(self.windows.question[window])
            score = self.score[window]
            if score == best[question] and bool(score.isfinite()):
                found[question] = self.windows.text(window, *self.span[window].tolist())
        return ["" if may_be_empty and bool(null[n] > best[n]) else text for n, text in enumerate(found)]
