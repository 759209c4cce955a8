"""Images and sounds to a model's inputs, by its own processor; calibration batches of them."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.data.images import read_image
from kprune.data.items import AUDIO, IMAGES, MEDIA, Medium, read_media
from kprune.data.rows import Row
from kprune.data.sounds import STEP_SECONDS, pieces_of, read_sound
from kprune.errors import BadSample, KpruneError
from kprune.models.batches import Example, examples_of
from kprune.models.passes import stream_length

log = logging.getLogger(__name__)

PIECE_SECONDS = 10
"""Sounds are cut into pieces of this length, for models that read waveforms of any length."""


@dataclass(frozen=True)
class MediaReader:
    """Turns images or sounds into a model's inputs; it takes the place of a tokenizer."""

    processor: Any
    inputs: str
    """The model's main input, such as `pixel_values`."""
    length_of: Callable[[dict[str, Tensor]], int] | None = None
    """Counts the tokens (patches, frames) that a model makes of one input."""
    piece: int | None = None
    """Samples in a piece of a sound; None: the processor's own length, or the default."""

    @property
    def medium(self) -> Medium:
        return MEDIA[self.inputs]

    def for_model(self, model: PreTrainedModel, max_length: int | None = None) -> MediaReader:
        """The reader for a model, which counts its tokens; `max_length` is the most tokens of a waveform."""
        piece = self.piece
        if max_length is not None and max_length < 10**9:
            ratio = getattr(model.config, "inputs_to_logits_ratio", None)
            if self.inputs != "input_values" or ratio is None:
                raise KpruneError(
                    f"max_length is {max_length}, but a {model.config.model_type!r} model fixes the number of tokens; "
                    "leave it out."
                )
            piece = max_length * int(ratio)
        return replace(self, length_of=partial(stream_length, model), piece=piece)

    def encode(self, rows: Sequence[Row]) -> list[Example]:
        """One example per row: the image, or the first piece of the sound."""
        return examples_of(({self.inputs: next(self.parts(row[0]))} for row in rows), self.length_of)

    def parts(self, item: str, first: int = 0, last: int = 1) -> Iterator[Tensor]:
        """The item's tensors with numbers from `first` to before `last`; an image has one, a sound its pieces."""
        if self.medium is IMAGES:
            if first == 0:
                yield self._call(images=[read_image(item)])
            return
        rate = int(self.processor.sampling_rate)
        padded = getattr(self.processor, "n_samples", None)  # the length to which the processor pads
        length, step = padded or self.piece or PIECE_SECONDS * rate, 1 if padded else int(STEP_SECONDS * rate)
        for sound in pieces_of(read_sound(item, rate), int(length), step)[first:last]:
            yield self._call(sound, sampling_rate=rate)

    def _call(self, *inputs: Any, **options: Any) -> Tensor:
        tensor: Tensor = self.processor(*inputs, return_tensors="pt", **options)[self.inputs]
        return tensor


def reader_of(processor: Any, inputs: str) -> MediaReader:
    """A reader that uses a processor, or the part of it that makes `inputs`."""
    if isinstance(processor, MediaReader):
        return processor
    for part in (processor, *(getattr(processor, name, None) for name in ("image_processor", "feature_extractor"))):
        names = getattr(part, "model_input_names", ())
        if part is not None and inputs in names and "input_ids" not in names:
            return MediaReader(part, inputs)
    remedy = "image processor" if MEDIA[inputs] is IMAGES else "feature extractor"
    raise BadSample(
        f"the model reads {inputs}, which a {type(processor).__name__} does not make; pass the model's {remedy}."
    )


def draw_images(
    data: Any,
    processor: Any,
    *,
    images: int | None = None,
    tokens: int | None = None,
    model: PreTrainedModel | None = None,
    column: str | None = None,
    seed: int = 0,
) -> list[dict[str, Tensor]]:
    """Batches of images, drawn without replacement: `images` of them, or `tokens` tokens (patches) of `model`.

    `data` is a folder, or a list, Dataset or DataFrame of paths, PIL images or arrays; `column` names the column.
    `processor` is the model's image processor.
    """
    reader = reader_of(processor, "pixel_values")
    return _drawn(data, reader, images, tokens, model, column, seed)


def draw_audio(
    data: Any,
    processor: Any,
    *,
    pieces: int | None = None,
    tokens: int | None = None,
    model: PreTrainedModel | None = None,
    column: str | None = None,
    seconds: float | None = None,
    seed: int = 0,
) -> list[dict[str, Tensor]]:
    """Batches of sounds in pieces of equal length: `pieces` of them, or `tokens` tokens (frames) of `model`.

    `data` is as for `draw_images`; `processor` is the model's feature extractor. Sounds are cut into pieces of
    `seconds` (10), or of the length to which the extractor pads.
    """
    names = getattr(getattr(processor, "feature_extractor", processor), "model_input_names", ())
    reader = reader_of(processor, "input_features" if "input_features" in names else "input_values")
    if seconds is not None:
        reader = replace(reader, piece=max(1, int(seconds * reader.processor.sampling_rate)))
    return _drawn(data, reader, pieces, tokens, model, column, seed)


def _drawn(
    data: Any,
    reader: MediaReader,
    count: int | None,
    tokens: int | None,
    model: PreTrainedModel | None,
    column: str | None,
    seed: int,
) -> list[dict[str, Tensor]]:
    noun = "images" if reader.medium is IMAGES else "pieces"
    if (count is None) == (tokens is None):
        raise BadSample(f"pass the size of the sample either as {noun}=… or as tokens=….")
    if tokens is not None and model is None:
        raise BadSample(f"tokens={tokens} are counted by the model; pass model=…, or {noun}=… instead.")
    if model is not None:
        reader = reader.for_model(model)
    rows = read_media(data, reader.medium, column).rows
    return draw_media(rows, reader, count=count, tokens=tokens, seed=seed)


def draw_media(
    rows: Sequence[Row],
    reader: MediaReader,
    *,
    count: int | None = None,
    tokens: int | None = None,
    seed: int = 0,
    labels: Sequence[float] | None = None,
) -> list[dict[str, Tensor]]:
    """Batches of one image or piece of sound each, drawn without replacement until they are `count`, or hold `tokens`.

    Every sound gives one piece before any gives a second.
    """
    wanted = count if tokens is None else tokens
    if wanted is None or wanted < 1:
        raise BadSample(f"the sample size is {wanted}; ask for 1 or more (100,000 tokens are usual).")
    batches: list[dict[str, Tensor]] = []
    missing, lengths = wanted, dict[tuple[int, ...], int]()
    for number, tensor in _in_random_order(rows, reader, seed):
        batch = {reader.inputs: tensor}
        if tokens is None:
            missing -= 1
        elif reader.length_of is not None:
            shape = tuple(tensor.shape)
            if shape not in lengths:
                lengths[shape] = reader.length_of(batch)
            missing -= lengths[shape]
        batches.append(batch if labels is None else {**batch, "labels": torch.tensor([labels[number]])})
        if missing <= 0:
            return batches
    unit = "tokens" if tokens is not None else "images" if reader.medium is IMAGES else "pieces"
    log.warning(
        "the data hold %d %s, fewer than the requested %d; all of them are used", wanted - missing, unit, wanted
    )
    return batches


def _in_random_order(rows: Sequence[Row], reader: MediaReader, seed: int) -> Iterator[tuple[int, Tensor]]:
    """Rows with their tensors: one of each row in random order, then two more of each that has them, then four, …"""
    left: Iterable[int] = random.Random(seed).sample(range(len(rows)), len(rows))
    first, last = 0, 1
    while left:
        longer = []
        for number in left:
            made = 0
            for tensor in reader.parts(rows[number][0], first, last):
                yield number, tensor
                made += 1
            if made == last - first and reader.medium is AUDIO:
                longer.append(number)
        left, first, last = longer, last, 2 * last + 1
