import io

import numpy as np
import pytest
import torch
from media_data import pixels
from PIL import Image

from kprune import KpruneError
from kprune.data.images import read_image
from kprune.data.items import read_images

GREY = np.linspace(0, 255, 48).round().astype(np.uint8).reshape(6, 8)


def read_in_memory(value) -> np.ndarray:
    (row,) = read_images([value]).rows
    return np.asarray(read_image(row[0]))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_becomes_rgb(mode, tmp_path):
    image = Image.fromarray(pixels(6, 8)).convert(mode)
    file = tmp_path / ("a.tif" if mode in ("CMYK", "YCbCr") else "a.png")
    image.save(file)
    found = read_image(str(file))
    assert (found.mode, found.size) == ("RGB", (8, 6))
    assert np.array_equal(np.asarray(found), np.asarray(Image.open(file).convert("RGB")))


@pytest.mark.parametrize("bits", [16, 32])
def test_sixteen_bits_are_scaled_and_not_cut_off(bits, tmp_path):
    deep = GREY.astype(np.uint16 if bits == 16 else np.int32) * 257
    Image.fromarray(deep).save(tmp_path / "deep.png" if bits == 16 else tmp_path / "deep.tif")
    found = np.asarray(read_image(str(next(tmp_path.iterdir()))))
    assert np.array_equal(found[..., 0], GREY)
    assert np.array_equal(found[..., 0], found[..., 2])


def test_a_photograph_is_turned_as_its_exif_entry_says(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    Image.fromarray(pixels(6, 8)).save(tmp_path / "a.jpg", exif=exif)
    assert read_image(str(tmp_path / "a.jpg")).size == (6, 8)


def test_values_in_memory_are_the_image_itself():
    array = pixels(6, 8)
    file = io.BytesIO()
    Image.fromarray(array).save(file, "png")
    forms = [Image.fromarray(array), array, array / 255, array.transpose(2, 0, 1), file.getvalue()]
    forms += [{"bytes": file.getvalue(), "path": None}, torch.from_numpy(array), array.astype(np.int64)]
    for form in forms:
        assert np.array_equal(read_in_memory(form), array), type(form)
    assert np.array_equal(read_in_memory(GREY)[..., 1], GREY)
    assert np.array_equal(read_in_memory(GREY.astype(np.uint16) * 257)[..., 1], GREY)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (np.zeros((5, 5, 7)), "row 0 of the data has the type ndarray and the shape .5, 5, 7., which is no image"),
        (np.full((4, 4), np.nan), "has pixels from nan to nan; pass bytes from 0 to 255"),
        (np.full((4, 4), -1.0), "has pixels from -1 to -1"),
        (np.zeros((0, 4), np.uint8), "which is no image"),
        (3, "which is no image"),
        (b"", "is not an image that Pillow can read|which is no image"),
    ],
)
def test_what_is_no_image_is_refused(value, sentence):
    with pytest.raises(KpruneError, match=sentence):
        read_in_memory(value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "empty.png is not an image that Pillow can read; restore the file"),
        (b"not an image", "empty.png is not an image"),
        ("cut", "cannot read the image .*empty.png"),
        (None, "there is no image .*empty.png; check the path"),
    ],
)
def test_a_broken_file_is_refused_by_name(content, sentence, tmp_path):
    path = tmp_path / "empty.png"
    if content == "cut":
        Image.fromarray(pixels(40, 40)).save(path)
        content = path.read_bytes()[:600]
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KpruneError, match=sentence):
        read_image(str(path))
