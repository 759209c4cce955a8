"""Named entities: spans of tagged words, compared by seqeval's rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedConfig

from kprune.data.labels import class_names
from kprune.data.tagging import ENTITY_METRICS, TaggedWords
from kprune.data.tasks import Test
from kprune.errors import KpruneError
from kprune.evaluation.metrics import Array, packed
from kprune.evaluation.scorers import ModelAnswers, Scorer
from kprune.models.batches import Batch
from kprune.models.outputs import TOKEN_CLASSIFICATION, Prediction

Entity = tuple[str, int, int]
"""Type, first word, and last word."""
OUTSIDE = "O"


def entities_of(tags: Sequence[str]) -> set[Entity]:
    """The entities of tagged words, by the lenient rules of conlleval, which are seqeval's default.

    Tags are `O`, or a letter (B, I, E, S) and a type: `B-PER`. An entity begins at B and S, after O, E and S, and
    where the type changes; it ends before such a word, and before O. So `I-PER` alone is an entity, too.
    """
    found: set[Entity] = set()
    start, before, kind = 0, OUTSIDE, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        letter, type_ = tag[:1] or OUTSIDE, tag[1:].removeprefix("-")
        begins = letter != OUTSIDE and (letter in "BS" or before in "OES" or type_ != kind)
        if before != OUTSIDE and (begins or letter == OUTSIDE):
            found.add((kind, start, place - 1))
        if begins:
            start = place
        before, kind = letter, type_
    return found


class EntityScorer(Scorer):
    """Token classification: the entities of a text against those of its reference; a word has its first token's tag."""

    metrics = ENTITY_METRICS

    def __init__(self, test: Test, tokenizer: object, max_length: int, kind: str) -> None:
        if kind != TOKEN_CLASSIFICATION.name:
            raise KpruneError(f"{test.name} has a tag per word, which a model for {kind} does not give; pass a tagger.")
        if not getattr(tokenizer, "is_fast", False):
            raise KpruneError("the tokenizer does not say which words its tokens are from; save it as tokenizer.json.")
        texts = [row[0] for row in test.rows]
        encoded = tokenizer(texts, truncation=True, max_length=max_length, return_offsets_mapping=True)  # type: ignore[operator]
        offsets = encoded.pop("offset_mapping")
        self.examples = [
            {name: torch.tensor(encoded[name][number]) for name in encoded} for number in range(len(texts))
        ]
        self.references: list[TaggedWords] = list(test.references or ())
        self.first_tokens = [
            _first_tokens(each.words, spans) for each, spans in zip(self.references, offsets, strict=True)
        ]

    def new_answers(self, config: PreTrainedConfig) -> ModelAnswers:
        return _EntityAnswers(self, class_names(config))


def _first_tokens(words: Sequence[str], spans: Sequence[tuple[int, int]]) -> dict[int, int]:
    """For the first token of each word that was not truncated, by position: the number of the word."""
    text = " ".join(words)
    word_at = [word for word, letters in enumerate(words) for _ in range(len(letters) + 1)]  # with the space after it
    found: dict[int, int] = {}
    for position, (start, end) in enumerate(spans):
        inside = [place for place in range(start, end) if not text[place].isspace()]
        if inside:
            found.setdefault(word_at[inside[0]], position)
    return {position: word for word, position in found.items()}


class _EntityAnswers(ModelAnswers):
    def __init__(self, scorer: EntityScorer, names: list[str]) -> None:
        super().__init__()
        if all(name == f"LABEL_{number}" for number, name in enumerate(names)):  # none of them would be `O`
            raise KpruneError(
                f"the model does not name its tags ({', '.join(names[:3])}, …), so that none is known to be "
                f"{OUTSIDE}; write them into id2label of the model's config.json."
            )
        self.scorer, self.names = scorer, names
        self.expected = [entities_of(self._named(each)) for each in scorer.references]
        self.tags = [[OUTSIDE] * len(each.words) for each in scorer.references]
        self._require_common_types()
        unread = sum(len(each.words) for each in scorer.references) - sum(map(len, scorer.first_tokens))
        if unread:
            self.notes.append(f"{unread:,} words have no token within the model's length, and count as {OUTSIDE}.")

    def _named(self, reference: TaggedWords) -> list[str]:
        """The tags by name; a number is that of the model's class."""
        wrong = [tag for tag in reference.tags if isinstance(tag, int) and not 0 <= tag < len(self.names)]
        if wrong:
            raise KpruneError(
                f"a tag is {wrong[0]}, but the model has classes 0 to {len(self.names) - 1}; name the tags."
            )
        return [self.names[tag] if isinstance(tag, int) else tag for tag in reference.tags]

    def _require_common_types(self) -> None:
        """Raise if the model knows none of the types of the references."""
        wanted = {kind for entities in self.expected for kind, _, _ in entities}
        known = {tag[1:].removeprefix("-") for tag in self.names if tag[:1] != OUTSIDE}
        if wanted and not wanted & known:
            raise KpruneError(
                f"the data's entities are {', '.join(sorted(wanted))}, and the model's tags are "
                f"{', '.join(self.names[:12])}; write the data's names into id2label of the model's config.json."
            )

    def add(self, prediction: Prediction, batch: Batch) -> None:
        chosen = prediction.values.argmax(-1).tolist()
        for example, position, number in zip(
            prediction.example.tolist(), prediction.position.tolist(), chosen, strict=True
        ):
            word = self.scorer.first_tokens[example].get(position)
            if word is not None:
                self.tags[example][word] = self.names[number]

    def columns(self, metric: str) -> tuple[Array, Array]:
        pairs = [(entities_of(tags), expected) for tags, expected in zip(self.tags, self.expected, strict=True)]
        counts = np.array([(len(theirs), len(ours), len(ours & theirs)) for ours, theirs in pairs])
        return counts[:, 0], packed(counts[:, 1], counts[:, 2])
