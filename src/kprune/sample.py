"""The sample: examples without their padding, regrouped by length into batches that fit a memory budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from kprune.errors import BadSample

Example = dict[str, Tensor]
"""One input's tensors, each of shape (length,), by the model's argument names."""


@dataclass(frozen=True)
class Batch:
    """Examples of similar length, padded to the longest."""

    inputs: dict[str, Tensor]
    """The model's arguments, each of shape (examples, length)."""
    mask: Tensor
    """True at real tokens; (examples, length)."""
    example: Tensor
    """Each example's number in the order in which the sample was given; (examples,)."""
    labels: Tensor | None
    """Right answers, one per example, where they are known; only rival methods look at them."""
    predicted: Tensor | None
    """True at tokens that a language model is asked for; None: all real ones."""
    tokens: Tensor | None
    """Places of the real tokens in the flattened batch; None: there is no padding."""

    def real(self, tensor: Tensor) -> Tensor:
        """The real tokens of (examples, length, n), as (tokens, n)."""
        flat = tensor.flatten(0, 1)
        return flat if self.tokens is None else flat.index_select(0, self.tokens)

    def totals(self, tensor: Tensor) -> Tensor:
        """Sums over the real tokens of each example of (examples, length, n), as (examples, n)."""
        return (self.mask[:, None].to(tensor.dtype) @ tensor).squeeze(1)

    @property
    def real_tokens(self) -> int:
        return self.mask.numel() if self.tokens is None else len(self.tokens)

    def halves(self) -> list[Batch]:
        """Two batches of half the examples, or this one, if there is only one."""
        middle = len(self.example) // 2
        return [self.rows(slice(0, middle)), self.rows(slice(middle, None))] if middle else [self]

    def rows(self, rows: slice) -> Batch:
        """Some of the examples, padded to their longest."""
        length = int(self.mask[rows].any(0).nonzero().max()) + 1
        mask = self.mask[rows, :length]
        return Batch(
            inputs={name: value[rows, :length] for name, value in self.inputs.items()},
            mask=mask,
            example=self.example[rows],
            labels=None if self.labels is None else self.labels[rows],
            predicted=None if self.predicted is None else self.predicted[rows, :length],
            tokens=places_of_real(mask),
        )


@dataclass(frozen=True)
class Sample:
    """What a model is measured on."""

    batches: list[Batch]
    examples: int
    tokens: int
    """Real tokens, padding not counted."""

    @property
    def mean_length(self) -> float:
        return self.tokens / self.examples

    @property
    def largest(self) -> Batch:
        """The batch of the most tokens, padding counted."""
        return max(self.batches, key=lambda batch: batch.mask.numel())

    def halved(self) -> Sample:
        """The same examples, in batches of half as many tokens as the largest has; a single example stays one."""
        most = self.largest.mask.numel() / 2
        batches = [batch.halves() if batch.mask.numel() > most else [batch] for batch in self.batches]
        return replace(self, batches=list(chain.from_iterable(batches)))


def examples_of(batches: Iterable[Mapping[str, Tensor]]) -> list[Example]:
    """The examples of tokenised batches, one by one, without the padding around them."""
    found: list[Example] = []
    for batch in batches:
        if "input_ids" not in batch:
            raise BadSample(f"a batch has no 'input_ids', only {sorted(batch)}; pass what the tokenizer returns")
        ids = torch.as_tensor(batch["input_ids"])
        if ids.dim() != 2:
            raise BadSample(f"input_ids have shape {tuple(ids.shape)}; pass batches of shape (examples, length)")
        mask = torch.as_tensor(batch.get("attention_mask", torch.ones_like(ids)))
        if mask.shape != ids.shape:
            raise BadSample(
                f"attention_mask has shape {tuple(mask.shape)} and input_ids {tuple(ids.shape)}; they must be equal"
            )
        per_token = {name: value for name, value in batch.items() if torch.as_tensor(value).shape == ids.shape}
        per_token["attention_mask"] = mask
        if "labels" in batch and torch.as_tensor(batch["labels"]).shape == ids.shape[:1] != ids.shape:
            per_example = torch.as_tensor(batch["labels"]).cpu()
        else:
            per_example = None
        if found and set(per_token) != set(found[0]) - ({"labels"} if per_example is not None else set()):
            raise BadSample(
                f"batches differ in what they hold: {sorted(found[0])} and {sorted(per_token)}; make them alike"
            )
        for row in range(len(ids)):
            real = mask[row].nonzero()
            if len(real):
                span = slice(int(real[0]), int(real[-1]) + 1)
                found.append({name: torch.as_tensor(value)[row, span].cpu() for name, value in per_token.items()})
                if per_example is not None:
                    found[-1]["labels"] = per_example[row]
    if not found:
        raise BadSample("the sample is empty: no batch has a real token; pass some text")
    return found


def regroup(
    examples: list[Example], *, tokens: int, pad_id: int, device: torch.device, most_padding: float = 1.0
) -> Sample:
    """The examples as a sample: sorted by length, in batches of at most `tokens` tokens (or one example).

    `most_padding` is the largest share of a batch's tokens that may be padding. The longest come first: what later
    batches need then fits where the first ones left off, and the process does not grow with the sample.
    """
    lengths = [len(example["input_ids"]) for example in examples]
    groups: list[list[int]] = []
    real = 0
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        # Ascending order: the example at hand is the longest of its batch.
        padded = (len(groups[-1]) + 1) * lengths[number] if groups else 0
        if groups and padded <= tokens and padded - real - lengths[number] <= most_padding * padded:
            groups[-1].append(number)
            real += lengths[number]
        else:
            groups.append([number])
            real = lengths[number]
    batches = [_pad([examples[n] for n in group], group, pad_id, device) for group in reversed(groups)]
    return Sample(batches, len(examples), sum(int(batch.mask.sum()) for batch in batches))


def _pad(examples: list[Example], numbers: list[int], pad_id: int, device: torch.device) -> Batch:
    fill = {"input_ids": pad_id, "labels": -100}
    inputs = {
        name: (
            torch.nn.utils.rnn.pad_sequence(
                [example[name] for example in examples], batch_first=True, padding_value=fill.get(name, 0)
            )
            if examples[0][name].dim()
            else torch.stack([example[name] for example in examples])
        ).to(device)
        for name in examples[0]
    }
    labels = inputs.pop("labels", None)
    is_per_example = labels is not None and labels.dim() == 1
    mask = inputs["attention_mask"].bool()
    return Batch(
        inputs=inputs,
        mask=mask,
        example=torch.tensor(numbers, device=device),
        labels=labels if is_per_example else None,
        predicted=None if labels is None or is_per_example else labels != -100,
        tokens=places_of_real(mask),
    )


def places_of_real(mask: Tensor) -> Tensor | None:
    """What `Batch.tokens` is of a mask."""
    return None if bool(mask.all()) else mask.flatten().nonzero().squeeze(1)
