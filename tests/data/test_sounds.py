import numpy as np
import pytest
import soundfile
from media_data import write_sound

from kprune import KpruneError
from kprune.data.items import read_audio
from kprune.data.sounds import pieces_of, read_sound


def read_in_memory(value, rate: int = 100) -> np.ndarray:
    (row,) = read_audio([value]).rows
    return read_sound(row[0], rate)


def tone(rate: int, seconds: float = 2.0) -> np.ndarray:
    return np.sin(2 * np.pi * 5 * np.arange(int(seconds * rate)) / rate)


@pytest.mark.parametrize("ending", ["wav", "flac", "ogg"])
def test_channels_are_mixed_and_the_rate_is_the_models(ending, tmp_path):
    path = tmp_path / f"a.{ending}"
    stereo = np.stack([0.5 * tone(8000), 0.1 * tone(8000)], axis=1)
    soundfile.write(path, stereo, 8000)
    found = read_sound(str(path), 2000)
    assert (found.dtype, found.shape) == (np.float32, (4000,))
    inner = slice(200, -200)  # a filter's ends differ
    assert np.abs(found - 0.3 * tone(2000))[inner].max() < 0.02


def test_values_in_memory_are_the_sound_itself():
    sound = tone(100).astype(np.float32)
    for form in (sound, sound[None], np.stack([sound, sound], 1), {"array": sound, "sampling_rate": 100}):
        assert np.array_equal(read_in_memory(form), sound)
    assert np.allclose(read_in_memory((sound * 32767).astype(np.int16)), sound, atol=1e-4)
    doubled = read_in_memory({"array": tone(200), "sampling_rate": 200})
    assert np.abs(doubled - sound)[10:-10].max() < 0.01


def test_pieces_have_equal_length_and_short_sounds_a_multiple_of_a_step():
    sound = np.arange(23, dtype=np.float32)
    assert [list(piece) for piece in pieces_of(sound, 10, 4)] == [list(range(10)), list(range(10, 20))]
    assert [len(piece) for piece in pieces_of(sound, 100, 4)] == [20]
    assert [len(piece) for piece in pieces_of(sound[:3], 100, 4)] == [3]
    assert [len(piece) for piece in pieces_of(sound[:10], 10, 4)] == [10]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (np.zeros(3), "row 0 of the data has 0.03 s of sound, less than 0.1"),
        (np.full(50, np.nan), "has samples that are not finite"),
        (np.zeros((50, 5, 5)), "which is no sound"),
        ({"array": np.zeros(500), "sampling_rate": -1}, "a sampling rate of -1"),
        (np.array(["a"]), "which is no sound"),
        (b"no sound", "cannot read the sound row 0 of the data"),
    ],
)
def test_what_is_no_sound_is_refused(value, sentence):
    with pytest.raises(KpruneError, match=sentence):
        read_in_memory(value)


@pytest.mark.parametrize("kind", ["empty", "text", "absent", "short"])
def test_a_broken_file_is_refused_by_name(kind, tmp_path):
    path = tmp_path / "a.wav"
    if kind == "short":
        write_sound(path, 0.01)
    elif kind != "absent":
        path.write_bytes(b"" if kind == "empty" else b"not a sound, but a text")
    with pytest.raises(KpruneError, match=r"a\.wav"):
        read_sound(str(path), 100)
