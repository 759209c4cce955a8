import datasets
import numpy as np
import pandas
import pytest
from media_data import pixels, write_images, write_sounds
from PIL import Image

from kprune import KpruneError, read_audio, read_images
from kprune.data.images import read_image
from kprune.data.sounds import read_sound


@pytest.fixture
def folder(tmp_path):
    return write_images(tmp_path / "photos", 9)


def test_a_folder_is_read_with_its_sub_folders_in_order(folder):
    (folder / "notes.txt").write_text("no image")
    (folder / "._hidden.png").write_bytes(b"no image")
    test = read_images(folder, folder_labels=True)
    assert [row[0] for row in test.rows] == sorted(str(path) for path in folder.rglob("[0-9].png"))
    assert test.references == ["cat"] * 3 + ["dog"] * 3 + ["owl"] * 3
    assert read_images(str(folder)).references is None
    assert len(read_images(folder / "cat" / "0.png").rows) == 1


def test_tables_and_data_sets_give_the_same_images(folder):
    paths = sorted(map(str, folder.rglob("*.png")))
    expected = [np.asarray(Image.open(path)) for path in paths]
    rows = [{"picture": path, "y": number % 2} for number, path in enumerate(paths)]
    typed = datasets.Dataset.from_list(rows).cast_column("picture", datasets.Image())
    opened = [{"picture": Image.open(path), "y": number % 2} for number, path in enumerate(paths)]
    for data in (rows, pandas.DataFrame(rows), datasets.Dataset.from_list(rows), typed, iter(opened)):
        test = read_images(data, "picture", "y")
        assert list(test.references) == [number % 2 for number in range(9)]
        assert all(
            np.array_equal(np.asarray(read_image(row[0])), e) for row, e in zip(test.rows, expected, strict=True)
        )
    assert len(read_images(typed).rows) == len(read_images(rows).rows) == 9  # the only column with images
    assert len(read_images(np.stack([pixels(4, 5)] * 3)).rows) == 3


def test_a_data_set_of_sounds_needs_no_decoder_of_its_own(tmp_path):
    folder = write_sounds(tmp_path / "clips", 3)
    paths = sorted(map(str, folder.rglob("*.wav")))
    data = datasets.Dataset.from_dict({"audio": paths}).cast_column("audio", datasets.Audio())
    (first, *_) = read_audio(data).rows
    assert np.array_equal(read_sound(first[0], 1600), read_sound(paths[0], 1600))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: read_images(folder / "nowhere"), "there is no folder .*nowhere; pass a folder of images"),
        (lambda folder: read_audio(folder), "has no audio .*pass a folder that has some"),
        (lambda folder: read_images(folder / "cat", folder_labels=True), "0.png is in no sub-folder"),
        (lambda folder: read_images(folder, "image"), "is a folder without columns"),
        (lambda folder: read_images(["a.png"], folder_labels=True), "the data is no folder"),
        (lambda folder: read_images(["a.png"], "image"), "has rows without columns"),
        (lambda folder: read_images([{"a": "x.png", "b": "y.png"}]), "has 2 columns with images; name one of a, b"),
        (lambda folder: read_images([{"a": "x.png"}], "b"), "row 0 of the data has no column 'b'; it has a"),
        (lambda folder: read_images([{"a": "x.png", "y": None}], "a", "y"), "row 0 of the data has no 'y'"),
        (lambda folder: read_images(datasets.Dataset.from_dict({"a": ["x"]}), "b"), "has no column 'b'; name one of a"),
        (lambda folder: read_images([]), "the data has no images"),
        (lambda folder: read_images(7), "the data has the type int"),
    ],
)
def test_bad_data_get_a_sentence(make, sentence, folder):
    with pytest.raises(KpruneError, match=sentence):
        make(folder)


def test_empty_rows_are_left_out_with_a_warning(folder, caplog):
    test = read_images([{"image": None}, {"image": str(folder / "cat" / "0.png")}, {"image": " "}])
    assert len(test.rows) == 1
    assert "2 rows of the data are empty" in caplog.text
