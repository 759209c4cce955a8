"""The sample: examples without padding, grouped by length into batches of a limited number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from kprune.errors import BadSample
from kprune.models.families import family_of, max_positions

REMEDY = "pass tokenised batches, such as those of kprune.draw"

Example = dict[str, Tensor]
"""Tensors of one input by the model's argument names, each of shape (length, …) if it has an entry per token.

`attention_mask` is always there. For images and sound it only counts the tokens that the model makes of them.
"""

OTHER_INPUTS = ("pixel_values", "input_features", "input_values")
"""Main inputs of models that do not read tokens: images, spectrograms and waveforms."""


@dataclass(frozen=True)
class Batch:
    """Examples of similar length, padded to the longest."""

    inputs: dict[str, Tensor]
    """The model's arguments, each of shape (examples, …)."""
    mask: Tensor
    """True at real tokens; (examples, length)."""
    example: Tensor
    """Number of each example in the order of the given sample; (examples,)."""
    labels: Tensor | None
    """Labels, one per example, if known; only rival methods and an ablation use them."""
    predicted: Tensor | None
    """True at tokens that a language model predicts; None: all real ones."""
    tokens: Tensor | None
    """Positions of the real tokens in the flattened batch; None: there is no padding."""

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

    @property
    def example_of_tokens(self) -> Tensor:
        """Number of the example of each real token; (tokens,)."""
        return self.example.to(self.mask.device).repeat_interleave(self.mask.sum(1))

    def halves(self) -> list[Batch]:
        """Two batches of half the examples, or this one, if there is only one."""
        middle = len(self.example) // 2
        return [self.rows(slice(0, middle)), self.rows(slice(middle, None))] if middle else [self]

    def rows(self, rows: slice) -> Batch:
        """Some of the examples, padded to their longest."""
        length = int(self.mask[rows].any(0).nonzero().max()) + 1
        mask = self.mask[rows, :length]
        per_token = self.mask.shape
        return Batch(
            inputs={
                name: value[rows, :length] if value.shape[:2] == per_token else value[rows]
                for name, value in self.inputs.items()
            },
            mask=mask,
            example=self.example[rows],
            labels=None if self.labels is None else self.labels[rows],
            predicted=None if self.predicted is None else self.predicted[rows, :length],
            tokens=real_positions(mask),
        )


@dataclass(frozen=True)
class Sample:
    """The batches that a model is measured on; with several processes, this process's shard of them."""

    batches: list[Batch]
    examples: int
    tokens: int
    """Real tokens of all processes, padding not counted."""
    distinct_examples: int | None = None
    """Examples without repetitions, of all processes; None: not counted."""
    distinct_tokens: int | None = None
    """Real tokens of the examples without repetitions."""

    @property
    def mean_length(self) -> float:
        return self.tokens / self.examples

    @property
    def largest(self) -> Batch:
        """The batch with the most tokens, padding included."""
        return max(self.batches, key=lambda batch: batch.mask.numel())

    def halved(self) -> Sample:
        """The same examples in batches of at most half the largest batch's tokens; a single example is not split."""
        most = self.largest.mask.numel() / 2
        batches = [batch.halves() if batch.mask.numel() > most else [batch] for batch in self.batches]
        return replace(self, batches=list(chain.from_iterable(batches)))


def as_batches(batches: Any) -> Iterator[Mapping[str, Tensor]]:
    """The batches, or the only one; raises if they are something else."""
    if isinstance(batches, Mapping):
        batches = [batches]
    if not isinstance(batches, Iterable) or isinstance(batches, str | bytes):
        raise BadSample(f"the batches have the type {type(batches).__name__}; {REMEDY}.")
    for number, batch in enumerate(batches):
        if not isinstance(batch, Mapping):
            raise BadSample(f"batch {number} has the type {type(batch).__name__}; {REMEDY}.")
        yield batch


def examples_of(
    batches: Iterable[Mapping[str, Tensor]],
    length_of: Callable[[dict[str, Tensor]], int] | None = None,
    pad_id: int | None = None,
) -> list[Example]:
    """The examples of tokenised batches, or of one batch, without the padding around them.

    `length_of` counts the tokens that a model makes of a batch of one image or sound. With `pad_id`, batches that are
    padded with it must have an `attention_mask`.
    """
    examples: list[Example] = []
    lengths: dict[tuple[int, ...], int] = {}
    for batch in as_batches(batches):
        name = next((name for name in OTHER_INPUTS if name in batch), None)
        if name is not None and "input_ids" not in batch:
            for example in _other_examples(batch, name):
                shape = tuple(example[name].shape)
                if shape not in lengths:
                    if length_of is None:
                        raise BadSample(f"the model reads tokens, and a batch has {name}; {REMEDY}.")
                    lengths[shape] = length_of({name: example[name][None]})
                examples.append({**example, "attention_mask": torch.ones(lengths[shape], dtype=torch.long)})
            continue
        per_token, labels = _checked(batch)
        if pad_id is not None and "attention_mask" not in batch:
            _require_unpadded(per_token["input_ids"], pad_id)
        if examples and set(per_token) != set(examples[0]) - ({"labels"} if labels is not None else set()):
            raise BadSample(
                f"batches have different keys: {sorted(examples[0])} and {sorted(per_token)}; give all the same keys."
            )
        mask = per_token["attention_mask"]
        for row in range(len(mask)):
            real = mask[row].nonzero()
            if len(real):
                span = slice(int(real[0]), int(real[-1]) + 1)
                examples.append({name: value[row, span].cpu() for name, value in per_token.items()})
                if labels is not None:
                    examples[-1]["labels"] = labels[row]
    if not examples:
        raise BadSample("the sample is empty: no batch has a real token; pass some text.")
    return examples


def _other_examples(batch: Mapping[str, Tensor], name: str) -> Iterator[Example]:
    """The images or sounds of a batch, each with its label if there is one; a waveform without its padding."""
    values = _tensor(name, batch[name])
    least = 2 if name == "input_values" else 3
    if values.dim() < least or not values.is_floating_point():
        raise BadSample(
            f"{name} have the shape {tuple(values.shape)} and the type {values.dtype}; pass the processor's output."
        )
    mask = batch.get("attention_mask") if name == "input_values" else None
    labels = _tensor("labels", batch["labels"]) if "labels" in batch else None
    for row in range(len(values)):
        value = values[row].cpu()
        if mask is not None:
            value = value[_tensor("attention_mask", mask)[row].bool().cpu()]
        example = {name: value}
        if labels is not None and labels.dim() == 1:
            example["labels"] = labels[row].cpu()
        yield example


def _checked(batch: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
    """The tensors of a batch with an entry per token, and its labels if there is one per example."""
    if "input_ids" not in batch:
        raise BadSample(f"a batch has no 'input_ids', only {sorted(map(str, batch))}; pass the tokenizer's output.")
    tensors = {name: _tensor(name, value) for name, value in batch.items()}
    ids = tensors["input_ids"]
    if ids.dim() != 2:
        raise BadSample(f"input_ids have shape {tuple(ids.shape)}; pass batches of shape (examples, length).")
    mask = tensors.get("attention_mask", torch.ones_like(ids))
    if mask.shape != ids.shape:
        raise BadSample(
            f"attention_mask has shape {tuple(mask.shape)} and input_ids {tuple(ids.shape)}; they must be equal."
        )
    per_token = {name: value for name, value in tensors.items() if value.shape[:2] == ids.shape}
    per_token["attention_mask"] = mask
    labels = tensors.get("labels")
    has_one_each = labels is not None and labels.shape == ids.shape[:1] != ids.shape
    return per_token, labels.cpu() if has_one_each and labels is not None else None


def _require_unpadded(ids: Tensor, pad_id: int) -> None:
    """Raise if padding would count as text."""
    if bool((ids[:, -1] == pad_id).any() | (ids[:, 0] == pad_id).any()):
        raise BadSample(
            f"input_ids are padded with token {pad_id} and have no attention_mask: padding would count as text; "
            "pass the tokenizer's attention_mask, too."
        )


def _tensor(name: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadSample(
            f"{name} of a batch is no tensor ({str(error).splitlines()[0]}); leave it out, or tokenise with "
            'padding=True, return_tensors="pt".'
        ) from error


def require_fit(examples: Sequence[Example], config: PreTrainedConfig) -> None:
    """Raise if the model has no embedding for a token, or too few positions for an example."""
    expected = family_of(config).inputs
    if expected not in examples[0]:
        raise BadSample(
            f"a {config.model_type!r} model reads {expected}, but the batches have {sorted(examples[0])}; pass the "
            "output of the model's own tokenizer or processor."
        )
    if expected != "input_ids":
        return
    ids = torch.cat([example["input_ids"] for example in examples])
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise BadSample(f"input_ids have the type {ids.dtype}, not integers; pass the tokenizer's output.")
    wrong = ids[(ids < 0) | (ids >= config.vocab_size)]
    if len(wrong):
        raise BadSample(
            f"the text has the token {int(wrong[0])}, but the model's embedding has tokens 0 to "
            f"{config.vocab_size - 1}; use the model's own tokenizer, or enlarge the embedding before fine-tuning."
        )
    _require_segments(examples, config)
    longest, positions = max(len(example["input_ids"]) for example in examples), max_positions(config)
    if longest > positions:
        raise BadSample(
            f"an input has {longest} tokens, but the model has {positions} positions; truncate inputs at "
            f"max_length={positions} or less."
        )


def _require_segments(examples: Sequence[Example], config: PreTrainedConfig) -> None:
    """Raise if the model has no embedding for a segment of `token_type_ids`."""
    segments = getattr(config, "type_vocab_size", None)
    given = [example["token_type_ids"] for example in examples if "token_type_ids" in example]
    if not isinstance(segments, int) or not segments or not given:
        return
    ids = torch.cat(given)
    wrong = ids[(ids < 0) | (ids >= segments)]
    if len(wrong):
        raise BadSample(
            f"token_type_ids have the segment {int(wrong[0])}, but the model has segments 0 to {segments - 1}; "
            "use the model's own tokenizer, or leave token_type_ids out."
        )


def regroup(
    examples: list[Example], *, tokens: int, pad_id: int, device: torch.device, most_padding: float = 1.0
) -> Sample:
    """The examples as a sample: sorted by length, in batches of at most `tokens` tokens (or one example).

    `most_padding` is the largest share of a batch's tokens that may be padding. The longest come first: later batches
    then fit into the memory that the first ones freed, and the process does not grow.
    """
    lengths = [len(example["attention_mask"]) for example in examples]
    shapes = [_unpadded_shape(example) for example in examples]
    groups: list[list[int]] = []
    real = 0
    for number in sorted(range(len(lengths)), key=lambda number: (lengths[number], shapes[number])):
        # In ascending order, the current example is the longest of its batch.
        padded = (len(groups[-1]) + 1) * lengths[number] if groups else 0
        is_alike = bool(groups) and shapes[groups[-1][0]] == shapes[number]
        if is_alike and padded <= tokens and padded - real - lengths[number] <= most_padding * padded:
            groups[-1].append(number)
            real += lengths[number]
        else:
            groups.append([number])
            real = lengths[number]
    batches = [_pad([examples[n] for n in group], group, pad_id, device) for group in reversed(groups)]
    return Sample(batches, len(examples), sum(int(batch.mask.sum()) for batch in batches))


def _unpadded_shape(example: Example) -> tuple[int, ...]:
    """The shape of an image or a sound, which is not padded; empty for tokens."""
    return next((tuple(example[name].shape) for name in OTHER_INPUTS if name in example), ())


def _pad(examples: list[Example], numbers: list[int], pad_id: int, device: torch.device) -> Batch:
    fill = {"input_ids": pad_id, "labels": -100}
    inputs = {
        name: (
            torch.nn.utils.rnn.pad_sequence(
                [example[name] for example in examples], batch_first=True, padding_value=fill.get(name, 0)
            )
            if examples[0][name].dim() and name not in OTHER_INPUTS
            else torch.stack([example[name] for example in examples])
        ).to(device)
        for name in examples[0]
    }
    labels = inputs.pop("labels", None)
    is_per_example = labels is not None and labels.dim() == 1
    mask = inputs["attention_mask"].bool()
    if "input_ids" not in inputs:
        del inputs["attention_mask"]
    return Batch(
        inputs=inputs,
        mask=mask,
        example=torch.tensor(numbers, device=device),
        labels=labels if is_per_example else None,
        predicted=None if labels is None or is_per_example else labels != -100,
        tokens=real_positions(mask),
    )


def real_positions(mask: Tensor) -> Tensor | None:
    """`Batch.tokens` of a mask."""
    return None if bool(mask.all()) else mask.flatten().nonzero().squeeze(1)
