"""Decode sounds: files, bytes and arrays, to one channel at a model's sampling rate."""

from __future__ import annotations

import io
from collections.abc import Mapping
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kprune.data.rows import Item
from kprune.errors import BadSample, KpruneError

Waveform = NDArray[np.float32]

SHORTEST_SECONDS = 0.1
"""A sound with less than this is refused: speech models need a few frames."""
STEP_SECONDS = 0.5
"""Sounds that are shorter than a piece are cut to a multiple of this, so that some have equal length."""
REMEDY = "restore the file, or take it out of the data"


def read_sound(item: str, rate: int) -> Waveform:
    """The sound of an item, mixed to one channel, at `rate` samples per second."""
    samples, own_rate = _decoded(item, rate)
    if samples.ndim == 2:  # (samples, channels) from a file; an array may have its channels first
        samples = samples.mean(1 if samples.shape[0] >= samples.shape[1] else 0)
    if samples.ndim != 1:
        raise BadSample(f"{item} has the shape {samples.shape}, which is no sound; pass one array of samples.")
    if own_rate < 1:
        raise BadSample(f"{item} has a sampling rate of {own_rate}; {REMEDY}.")
    if len(samples) < SHORTEST_SECONDS * own_rate:
        raise BadSample(
            f"{item} has {len(samples) / own_rate:.2g} s of sound, less than {SHORTEST_SECONDS:g}; take it out of "
            "the data."
        )
    if not np.isfinite(samples).all():
        raise BadSample(f"{item} has samples that are not finite; {REMEDY}.")
    return _resampled(samples, own_rate, rate).astype(np.float32)


def pieces_of(sound: Waveform, length: int, step: int) -> list[Waveform]:
    """The sound in pieces of `length` samples; a shorter sound is cut to a multiple of `step`, if it is that long.

    What is left after the last whole piece is dropped.
    """
    if len(sound) >= length:
        return [sound[start : start + length] for start in range(0, len(sound) - length + 1, length)]
    return [sound[: len(sound) // step * step] if len(sound) >= step else sound]


def _decoded(item: str, rate: int) -> tuple[NDArray[Any], int]:
    """Samples between −1 and 1, and their rate; an array without a rate has the model's."""
    content = item.content() if isinstance(item, Item) and item.content else item
    own_rate: Any = rate
    if isinstance(content, Mapping):  # a cell of a data set
        own_rate = content.get("sampling_rate") or rate
        array = content.get("array")
        content = array if array is not None else content.get("bytes") or content.get("path")
    if isinstance(content, str | bytes):
        return _read_file(io.BytesIO(content) if isinstance(content, bytes) else content, item)
    samples = np.asarray(content)
    if samples.dtype.kind not in "if" or not samples.size:
        raise BadSample(
            f"{item} has the type {type(content).__name__}, which is no sound; pass a path or an array of samples."
        )
    if samples.dtype.kind == "i":
        samples = samples / -float(np.iinfo(samples.dtype).min)
    return samples, int(own_rate)


def _read_file(file: Any, item: str) -> tuple[NDArray[Any], int]:
    try:
        import soundfile
    except ImportError as error:
        raise KpruneError("sounds need the extra: pip install 'kprune[audio]'.") from error
    try:
        samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise BadSample(f"cannot read the sound {item} ({reason}); {REMEDY}.") from error
    return samples, int(rate)


def _resampled(samples: NDArray[Any], own_rate: int, rate: int) -> NDArray[Any]:
    if own_rate == rate:
        return samples
    try:
        from scipy.signal import resample_poly
    except ImportError as error:
        raise KpruneError("sounds of another sampling rate need the extra: pip install 'kprune[audio]'.") from error
    common = gcd(own_rate, rate)
    return np.asarray(resample_poly(samples, rate // common, own_rate // common))
