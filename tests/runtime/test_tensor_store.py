"""Tensors in other places: the same bits come back, and a failing disk is named."""

from pathlib import Path

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from kprune import KpruneError, prune
from kprune.runtime.tensor_store import DiskStore, HostStore, open_store

BATCHES = tiny.batched(tiny.texts(96))
OPTIONS = {"reduction": 0.6, "ridge": 1e-4}


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 4), max_size=3), st.booleans()), max_size=12))
def test_a_store_keeps_what_a_dict_keeps(changes):
    stores = [open_store(None), open_store("host"), open_store(".")]
    for key, shape, wide in changes:
        tensor = torch.randn(shape, dtype=torch.float64 if wide else torch.bfloat16)
        for each in stores:
            if wide and key in each and not shape:
                del each[key]
            else:
                each[key] = tensor
    for each in stores[1:]:
        assert list(each) == list(stores[0])
        for key, tensor in stores[0].items():
            assert each[key].dtype == tensor.dtype
            assert torch.equal(each[key], tensor)


def test_places_have_their_stores(tmp_path):
    assert open_store(None) == {}
    assert isinstance(open_store("host"), HostStore)
    assert isinstance(open_store(tmp_path), DiskStore)
    assert isinstance(open_store(str(tmp_path)), DiskStore)


def test_a_place_on_disk_is_used_again(tmp_path):
    store = open_store(tmp_path)
    for value in range(5):
        store["stream"] = torch.full((100,), float(value))
    assert torch.equal(store["stream"], torch.full((100,), 4.0))
    assert store._file.seek(0, 2) == 400
    assert list(tmp_path.iterdir()) == []  # the file has no name


def test_a_disk_that_returns_too_little_is_named(tmp_path):
    store = open_store(tmp_path)
    store[0] = torch.ones(100)
    store._file.truncate(120)
    with pytest.raises(KpruneError, match="returned 120 of 400 bytes of a stream; check the disk"):
        store[0]


def same_weights(one, two):
    ours, theirs = one.model.state_dict(), two.model.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("kind", ["classification", "masked language model"])
@pytest.mark.parametrize("criterion", ["compensated", "fisher"])
def test_streams_kept_elsewhere_give_the_same_bits(kind, criterion, tmp_path):
    model = tiny.tiny_model("bert", kind)
    expected = prune(model, BATCHES, **OPTIONS, criterion=criterion)
    for place in ("host", tmp_path):
        same_weights(prune(model, BATCHES, **OPTIONS, criterion=criterion, offload=place), expected)
    assert list(tmp_path.iterdir()) == []


def test_only_brackets_read_a_tensor(tmp_path, monkeypatch):
    kept = open_store(tmp_path)
    kept[0] = torch.ones(3)
    monkeypatch.setattr(type(kept), "__getitem__", None)
    assert 0 in kept
    assert 1 not in kept
    kept.clear()
    assert len(kept) == 0


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for place, reason in ((tmp_path / "none", "No such file"), (tmp_path / "file", "Not a directory")):
        with pytest.raises(KpruneError, match=f"cannot store streams in .*: {reason}.*; choose another folder"):
            prune(tiny.tiny_model(), BATCHES, **OPTIONS, offload=place)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: Path("/dev/full").open("r+b"))  # noqa: SIM115
    with pytest.raises(KpruneError, match=r"cannot store streams in .*: No space left on device"):
        prune(tiny.tiny_model(), BATCHES, **OPTIONS, offload=tmp_path)
