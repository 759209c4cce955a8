"""Decode images: files, bytes, PIL images and arrays of any mode, to RGB."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kprune.data.rows import Item
from kprune.errors import BadSample, KpruneError

if TYPE_CHECKING:
    from PIL.Image import Image

REMEDY = "restore the file, or take it out of the data"
CHANNELS = (1, 3, 4)


def read_image(item: str) -> Image:
    """The image of an item in RGB, turned as its EXIF entry says."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise KpruneError("images need the extra: pip install 'kprune[vision]'.") from error
    content = item.content() if isinstance(item, Item) and item.content else item
    if isinstance(content, Mapping):  # a cell of a data set
        content = content.get("bytes") or content.get("path")
    try:
        if isinstance(content, str | bytes):
            image: Image.Image = Image.open(io.BytesIO(content) if isinstance(content, bytes) else content)
        else:
            image = content if isinstance(content, Image.Image) else Image.fromarray(_pixels(content, item))
        return _in_rgb(ImageOps.exif_transpose(image))
    except FileNotFoundError as error:
        raise BadSample(f"there is no image {item}; check the path.") from error
    except UnidentifiedImageError as error:
        raise BadSample(f"{item} is not an image that Pillow can read; {REMEDY}.") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        # Pillow raises any of these for broken files.
        raise BadSample(f"cannot read the image {item} ({str(error).rstrip('.')}); {REMEDY}.") from error


def _in_rgb(image: Image) -> Image:
    """The image in RGB; more than 8 bits are scaled to 8, where Pillow would cut them off."""
    from PIL import Image

    if image.mode.startswith(("I", "F")):
        values = np.asarray(image, dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("it has pixels that are not finite")
        largest = values.max()
        scale = 255.0 if largest <= 1 else 1.0 if largest <= 255 and image.mode == "F" else 255.0 / 65535.0
        image = Image.fromarray((values * scale).clip(0, 255).round().astype(np.uint8))
    return image.convert("RGB")


def _pixels(content: Any, item: str) -> NDArray[np.uint8]:
    """An array of pixels as (height, width) or (height, width, channels) of 8 bits; floats are between 0 and 1."""
    array = np.asarray(content)
    if array.ndim == 3 and array.shape[0] in CHANNELS and array.shape[2] not in CHANNELS:
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    is_image = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in CHANNELS)
    if not is_image or not array.size or array.dtype.kind not in "buif":
        raise BadSample(
            f"{item} has the type {type(content).__name__} and the shape {array.shape}, which is no image; pass a "
            "path, a PIL image, or an array of (height, width, 3)."
        )
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    scale = 255.0 if array.dtype.kind in "bf" else 1.0
    values = array.astype(np.float64) * (255.0 / 65535.0 if array.dtype == np.uint16 else scale)
    if not np.isfinite(values).all() or values.min() < 0 or values.max() > 255:
        raise BadSample(
            f"{item} has pixels from {array.min():g} to {array.max():g}; pass bytes from 0 to 255, or floats from 0 "
            "to 1."
        )
    return np.ascontiguousarray(values.round().astype(np.uint8))
