"""Tiny models of images and sounds with real processors, and files for them."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import zoo
from PIL import Image
from transformers import ViTImageProcessor, Wav2Vec2FeatureExtractor, WhisperFeatureExtractor

CLASSES = ("cat", "dog", "owl")
RATE = 1600
"""Samples per second of the tiny waveform models."""


def image_processor(**changes: Any) -> Any:
    return ViTImageProcessor(**{"size": {"height": 16, "width": 16}, **changes})


def waveform_extractor() -> Any:
    return Wav2Vec2FeatureExtractor(sampling_rate=RATE)


def whisper_extractor() -> Any:
    """An extractor that pads to one second and makes 24 frames of 8 bins."""
    return WhisperFeatureExtractor(feature_size=8, hop_length=666, chunk_length=1, n_fft=1024)


PROCESSORS = {"pixel_values": image_processor, "input_values": waveform_extractor, "input_features": whisper_extractor}


def write_model(folder: Path, name: str, kind: str | None = None, **changes: Any) -> Path:
    """Write a tiny model with its processor; returns `folder`."""
    if kind is not None and kind.endswith("classification"):
        changes = {"id2label": dict(enumerate(CLASSES)), **changes}
    model = zoo.build(name, kind, **changes)
    model.save_pretrained(folder)
    PROCESSORS[model.main_input_name]().save_pretrained(folder)
    return folder


def pixels(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_images(folder: Path, count: int = 60) -> Path:
    """Write images of mixed sizes, in one sub-folder per class; returns `folder`."""
    for number in range(count):
        path = folder / CLASSES[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(10 + number % 7, 12 + number % 11, number)).save(path)
    return folder


def write_sound(path: Path, seconds: float, rate: int = RATE, channels: int = 1, seed: int = 0) -> Path:
    """Write noise as a wav file; returns `path`."""
    noise = np.random.default_rng(seed).normal(size=(int(seconds * rate), channels))
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((noise * 5000).astype("<i2").tobytes())
    return path


def write_sounds(folder: Path, count: int = 30) -> Path:
    """Write sounds of mixed lengths, rates and channels, in one sub-folder per class; returns `folder`."""
    for number in range(count):
        path = folder / CLASSES[number % 3] / f"{number}.wav"
        write_sound(path, 0.6 + 0.2 * (number % 5), (RATE, 2000)[number % 2], 1 + number % 2, number)
    return folder
