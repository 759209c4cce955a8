"""Where memory ends: streams kept elsewhere, and batches that are halved."""

import sys
import time
from pathlib import Path

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from kprune import KpruneError, Pruner, prune
from kprune import measure as measure_module
from kprune import streams as streams_module
from kprune.errors import OutOfMemory
from kprune.memory import batch_by_batch
from kprune.observe import forward_and_top, watch
from kprune.shelf import shelf

BATCHES = tiny.batched(tiny.texts(96))
OPTIONS = {"reduction": 0.6, "ridge": 1e-4}


def same_weights(one, two):
    ours, theirs = one.model.state_dict(), two.model.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 4), max_size=3), st.booleans()), max_size=12))
def test_a_shelf_keeps_what_a_dict_keeps(changes):
    shelves = [shelf(None), shelf("host"), shelf(".")]
    for key, shape, wide in changes:
        tensor = torch.randn(shape, dtype=torch.float64 if wide else torch.bfloat16)
        for each in shelves:
            if wide and key in each and not shape:
                del each[key]
            else:
                each[key] = tensor
    for each in shelves[1:]:
        assert list(each) == list(shelves[0])
        for key, tensor in shelves[0].items():
            assert each[key].dtype == tensor.dtype
            assert torch.equal(each[key], tensor)


@pytest.mark.parametrize("kind", ["classification", "masked language model"])
@pytest.mark.parametrize("criterion", ["compensated", "fisher"])
def test_streams_kept_elsewhere_give_the_same_bits(kind, criterion, tmp_path):
    model = tiny.tiny_model("bert", kind)
    expected = prune(model, BATCHES, **OPTIONS, criterion=criterion)
    for place in ("host", tmp_path):
        same_weights(prune(model, BATCHES, **OPTIONS, criterion=criterion, offload=place), expected)
    assert list(tmp_path.iterdir()) == []


def test_a_shelf_is_read_only_for_its_tensors(tmp_path, monkeypatch):
    kept = shelf(tmp_path)
    kept[0] = torch.ones(3)
    monkeypatch.setattr(type(kept), "__getitem__", None)
    assert 0 in kept
    assert 1 not in kept
    kept.clear()
    assert len(kept) == 0


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for place, reason in ((tmp_path / "none", "No such file"), (tmp_path / "file", "Not a directory")):
        with pytest.raises(KpruneError, match=f"cannot keep streams in .*: {reason}.*; choose another place"):
            prune(tiny.tiny_model(), BATCHES, **OPTIONS, offload=place)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: Path("/dev/full").open("r+b"))  # noqa: SIM115
    with pytest.raises(KpruneError, match=r"cannot keep streams in .*: No space left on device"):
        prune(tiny.tiny_model(), BATCHES, **OPTIONS, offload=tmp_path)


def little_memory(monkeypatch, module, name, most):
    """Let a pass fail on batches of more than `most` tokens, as a GPU's allocator does; returns what went through."""
    passed, function = [], getattr(module, name)

    def limited(*args, **kwargs):
        batch = next(arg for arg in args if hasattr(arg, "halves"))
        if batch.mask.numel() > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        passed.append(batch.mask.numel())
        return function(*args, **kwargs)

    monkeypatch.setattr(module, name, limited)
    return passed


@pytest.mark.parametrize("criterion", ["compensated", "fisher"])
@pytest.mark.parametrize(
    ("module", "name", "function"),
    [(measure_module, "forward_and_top", forward_and_top), (streams_module, "watch", watch)],
    ids=["measuring", "refitting"],
)
def test_out_of_memory_halves_the_batch_and_goes_on(module, name, function, criterion, monkeypatch, caplog):
    assert getattr(module, name) is function
    model = tiny.tiny_model()
    expected = prune(model, BATCHES, **OPTIONS, criterion=criterion)
    passed = little_memory(monkeypatch, module, name, most=60)
    found = prune(model, BATCHES, **OPTIONS, criterion=criterion)
    assert passed
    assert "out of memory: going on with batches of" in caplog.text
    assert [step.kept for step in found.steps] == [step.kept for step in expected.steps]
    assert (found.examples, found.tokens) == (expected.examples, expected.tokens)
    for ours, theirs in zip(found.steps, expected.steps, strict=True):
        assert ours.error_after == pytest.approx(theirs.error_after, rel=1e-4)


def test_where_memory_ends_late_finished_sublayers_are_not_pruned_again(monkeypatch):
    seen = []
    original = streams_module.Streams.remove

    def remove(self, target, *args):
        if target.name == "layer 1 ffn" and self.sample.batches[0].mask.numel() > 60:
            raise OutOfMemory("as if")
        seen.append(target.name)
        return original(self, target, *args)

    monkeypatch.setattr(streams_module.Streams, "remove", remove)
    pruned = prune(tiny.tiny_model(), BATCHES, **OPTIONS)
    assert seen == [step.name for step in pruned.steps]


def test_where_one_input_is_too_much_it_is_told(monkeypatch):
    little_memory(monkeypatch, measure_module, "forward_and_top", most=23)  # the longest text has 24 tokens
    with pytest.raises(OutOfMemory, match="not enough memory for a batch of the sample; use shorter texts"):
        prune(tiny.tiny_model(), BATCHES, **OPTIONS)


def test_a_text_too_long_for_memory_ends_the_run_at_once(monkeypatch, caplog):
    inputs = [torch.arange(5, 65), *tiny.texts(200, shortest=4, longest=6)]
    for name in ("ACTIVATION_BYTES", "ACTIVATION_BYTES_ONCE", "ACTIVATION_SHARE"):  # a text at a time
        monkeypatch.setattr(sys.modules["kprune.prune"], name, 0)
    little_memory(monkeypatch, measure_module, "forward_and_top", most=59)
    with pytest.raises(OutOfMemory):
        prune(tiny.tiny_model(), tiny.batched(inputs, size=1), **OPTIONS)
    assert caplog.text.count("out of memory") == 0


def test_a_preview_is_halved_too(monkeypatch):
    pruner = Pruner(tiny.tiny_model(), BATCHES, ridge=1e-4)
    expected = pruner.preview(0.6)
    little_memory(monkeypatch, measure_module, "forward_and_top", most=300)
    assert Pruner(tiny.tiny_model(), BATCHES, ridge=1e-4).preview(0.6) == expected


def test_time_is_that_of_all_attempts(monkeypatch):
    little_memory(monkeypatch, measure_module, "forward_and_top", most=300)
    began = time.perf_counter()
    pruned = prune(tiny.tiny_model(), BATCHES, **OPTIONS)
    spent = time.perf_counter() - began
    assert sum(step.seconds for step in pruned.steps) < pruned.seconds <= spent
    assert pruned.seconds > 0.8 * spent


def test_a_checkpoint_serves_a_run_whose_batches_were_halved(monkeypatch, tmp_path):
    model = tiny.tiny_model()
    with monkeypatch.context() as scarce:
        little_memory(scarce, measure_module, "forward_and_top", most=300)
        first = prune(model, BATCHES, **OPTIONS, checkpoint=tmp_path / "kept")
    (tmp_path / "kept" / "step-005.safetensors").unlink()
    again = prune(model, BATCHES, **OPTIONS, checkpoint=tmp_path / "kept")  # batches are large again
    assert [step.kept for step in again.steps] == [step.kept for step in first.steps]


def test_a_checkpoint_of_a_pruner_that_halved_before_serves_another(monkeypatch, tmp_path):
    model = tiny.tiny_model()
    with monkeypatch.context() as scarce:
        little_memory(scarce, measure_module, "forward_and_top", most=300)
        pruner = Pruner(model, BATCHES, ridge=1e-4)
        pruner.prune(0.4)
        first = pruner.prune(0.6, checkpoint=tmp_path / "kept")
    again = prune(model, BATCHES, **OPTIONS, checkpoint=tmp_path / "kept")
    same_weights(again, first)


def test_halved_batches_hold_the_same_examples():
    sample = tiny.sample_of(tiny.texts(50), tokens=400)
    halved = sample.halved()
    assert max(len(batch.example) for batch in halved.batches) < max(len(batch.example) for batch in sample.batches)
    rows = {}
    for part in (sample, halved):
        found = {}
        for batch in part.batches:
            for row, number in enumerate(batch.example.tolist()):
                found[number] = batch.inputs["input_ids"][row][batch.mask[row]].tolist()
            ids = batch.inputs["input_ids"]
            assert torch.equal(batch.real(ids[..., None])[:, 0], ids[batch.mask])
            assert batch.real_tokens == int(batch.mask.sum())
        rows[part is halved] = found
    assert rows[True] == rows[False]
    single = sample
    while len(single.largest.example) > 1:
        before = single.largest.mask.numel()
        single = single.halved()
        longest = max(batch.mask.shape[1] for batch in single.batches)
        assert single.largest.mask.numel() <= before / 2 + longest  # up to an example that is left over
    assert single.largest.mask.numel() == 24


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), batch_by_batch():
        torch.zeros(2, 3) @ torch.zeros(2, 3)
    with pytest.raises(OutOfMemory), batch_by_batch():
        torch.empty(2**60)  # the host's allocator has an error of its own


def test_the_pruner_stays_with_the_batches_that_fitted(monkeypatch):
    little_memory(monkeypatch, measure_module, "forward_and_top", most=300)
    pruner = Pruner(tiny.tiny_model(), BATCHES, ridge=1e-4)
    one, two = pruner.prune(0.4), pruner.prune(0.6)
    assert max(batch.mask.numel() for batch in pruner.sample.batches) <= 300
    assert one.reduction < two.reduction
