"""Language models: positions at which two models hold another token most likely, and rows whose choice changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kprune.evaluation.change_log import Change, ChangeLog, Changes, shortened
from kprune.models.outputs import Prediction

MOST_KEPT = 1000
"""Positions that are kept while a test runs: those of which the second model is most sure."""
CONTEXT = 48
"""Tokens that are shown before a predicted one; a masked one has half of them before it, and half behind it."""
NEXT_TOKEN, MASKED_TOKEN, CHOICE = "next token", "masked token", "choice"


class _ChangedTokens(ChangeLog):
    """Positions at which the most likely token is another one."""

    what = NEXT_TOKEN

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.compared = self.changed = 0
        self.found = torch.zeros(0, 6, dtype=torch.float64)
        """Both probabilities, the second model's first; the example; the position; both tokens."""

    def add(self, ours: Prediction, theirs: Prediction) -> None:
        chosen = [each.values.argmax(-1) for each in (theirs, ours)]
        rows = (chosen[0] != chosen[1]).nonzero().squeeze(1)
        tokens = [each[rows] for each in chosen]
        sure = [_probability(each.values[rows], token) for each, token in zip((theirs, ours), tokens, strict=True)]
        columns = [*sure, ours.example[rows], ours.position[rows], *tokens]
        found = torch.cat([self.found, torch.stack([each.cpu().double() for each in columns], dim=1)])
        order = found[:, 0].argsort(descending=True, stable=True)
        self.found = found[order[:MOST_KEPT]]
        self.compared += len(chosen[0])
        self.changed += len(rows)

    def changes(self, most: int, answers: Sequence[Any]) -> Changes | None:
        if not hasattr(self.tokenizer, "decode"):
            return None
        kept = tuple(self._change(row) for row in self.found[:most].tolist())
        return Changes(self.what, self.compared, self.changed, kept)

    def _change(self, row: list[float]) -> Change:
        before, after, *numbers = row
        example, position, theirs, ours = (int(number) for number in numbers)
        right = int(self.examples[example]["labels"][position])
        text = self._context(self.examples[example]["input_ids"].tolist(), position)
        return Change((text,), self._written(theirs), self._written(ours), before, after, self._written(right))

    def _context(self, tokens: list[int], position: int) -> str:
        """The end of the text that the model read before it predicted the token."""
        start = max(0, position + 1 - CONTEXT)
        text: str = self.tokenizer.decode(tokens[start : position + 1])
        return f"… {text}" if start else text

    def _written(self, token: int) -> str:
        """A token as text, with a sign for line breaks and for nothing but space."""
        text: str = self.tokenizer.decode([token])
        return text.replace("\n", "↵").strip() or "␣"


class ChangedNextTokens(_ChangedTokens):
    """Causal language models: the most likely next token."""


class ChangedMaskedTokens(_ChangedTokens):
    """Masked language models: the most likely token at a mask."""

    what = MASKED_TOKEN

    def _context(self, tokens: list[int], position: int) -> str:
        start, end = max(0, position - CONTEXT // 2), position + 1 + CONTEXT // 2
        before, after = (self.tokenizer.decode(part) for part in (tokens[start:position], tokens[position + 1 : end]))
        return f"{'… ' if start else ''}{before} ____ {after}{' …' if end < len(tokens) else ''}"


class ChangedChoices(ChangeLog):
    """Zero-shot choices: the continuation that is most likely."""

    def changes(self, most: int, answers: Sequence[Any]) -> Changes:
        choices = self.test.references or ()
        ours, theirs = (each.columns("accuracy")[1] for each in answers)
        differing = np.flatnonzero(ours != theirs)

        def written(n: int, chosen: int) -> str:
            return shortened(choices[n].texts[chosen], n)

        kept = tuple(
            Change(self._text(n), written(n, theirs[n]), written(n, ours[n]), None, None, written(n, choices[n].answer))
            for n in differing[:most].tolist()
        )
        return Changes(CHOICE, len(choices), len(differing), kept)


def _probability(logits: Tensor, token: Tensor) -> Tensor:
    """The probability of one token per row."""
    chosen = logits.gather(1, token[:, None]).squeeze(1)
    return (chosen - logits.logsumexp(1)).exp()
