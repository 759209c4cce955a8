"""Where memory runs out: batches are halved, and finished sublayers are kept."""

import itertools

import pytest
import tiny
import torch

from kprune import Pruner, prune
from kprune.errors import OutOfMemory
from kprune.models.passes import forward_and_top, watch
from kprune.pruning import measurement, memory_policy, progress
from kprune.pruning import pruner as pruner_module
from kprune.pruning import streams as streams_module
from kprune.pruning.baselines import feature_moments, task_gradients
from kprune.runtime.memory import guard_memory, is_out_of_memory

BATCHES = tiny.batched(tiny.texts(96))
OPTIONS = {"reduction": 0.6, "ridge": 1e-4}


def same_weights(one, two):
    ours, theirs = one.model.state_dict(), two.model.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


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
    [(measurement, "forward_and_top", forward_and_top), (streams_module, "watch", watch)],
    ids=["measuring", "refitting"],
)
def test_out_of_memory_halves_the_batch_and_goes_on(module, name, function, criterion, monkeypatch, caplog):
    assert getattr(module, name) is function
    model = tiny.tiny_model()
    expected = prune(model, BATCHES, **OPTIONS, criterion=criterion)
    passed = little_memory(monkeypatch, module, name, most=60)
    found = prune(model, BATCHES, **OPTIONS, criterion=criterion)
    assert passed
    assert "out of memory: continuing with batches of at most" in caplog.text
    assert [step.kept for step in found.steps] == [step.kept for step in expected.steps]
    assert (found.examples, found.tokens) == (expected.examples, expected.tokens)
    for ours, theirs in zip(found.steps, expected.steps, strict=True):
        assert ours.error_after == pytest.approx(theirs.error_after, rel=1e-4)


@pytest.mark.parametrize(
    ("method", "module", "name"),
    [
        *((method, task_gradients, "forward") for method in ("kwon", "textpruner")),
        *((method, feature_moments, "advance") for method in ("kcm", "flap", "wanda-sp", "liar")),
    ],
)
def test_out_of_memory_halves_the_batches_of_rivals(method, module, name, monkeypatch, caplog):
    model = tiny.tiny_model()
    options = {"reduction": 0.2, "ridge": 1e-4, "method": method, **tiny.QUICK.get(method, {})}
    expected = prune(model, BATCHES, **options)
    assert little_memory(monkeypatch, module, name, most=60) == []
    found = prune(model, BATCHES, **options)
    assert "out of memory: continuing with batches of at most" in caplog.text
    assert [step.kept for step in found.steps] == [step.kept for step in expected.steps]


def test_where_memory_ends_late_finished_sublayers_are_not_pruned_again(monkeypatch):
    finished = []
    original = streams_module.Streams.remove

    def remove(self, target, *args, **options):
        if target.name == "layer 1 ffn" and self.sample.batches[0].mask.numel() > 60:
            raise OutOfMemory("as if")
        finished.append(target.name)
        return original(self, target, *args, **options)

    monkeypatch.setattr(streams_module.Streams, "remove", remove)
    pruned = prune(tiny.tiny_model(), BATCHES, **OPTIONS)
    assert finished == [step.name for step in pruned.steps]


def test_where_one_input_is_too_much_it_is_told(monkeypatch):
    little_memory(monkeypatch, measurement, "forward_and_top", most=23)  # the longest text has 24 tokens
    with pytest.raises(OutOfMemory, match="not enough memory for a batch of the sample; use shorter texts"):
        prune(tiny.tiny_model(), BATCHES, **OPTIONS)


def test_a_text_too_long_for_memory_ends_the_run_at_once(monkeypatch, caplog):
    inputs = [torch.arange(5, 65), *tiny.texts(200, shortest=4, longest=6)]
    for name in ("ACTIVATION_BYTES", "ACTIVATION_BYTES_ONCE", "ACTIVATION_SHARE"):  # a text at a time
        monkeypatch.setattr(memory_policy, name, 0)
    little_memory(monkeypatch, measurement, "forward_and_top", most=59)
    with pytest.raises(OutOfMemory):
        prune(tiny.tiny_model(), tiny.batched(inputs, size=1), **OPTIONS)
    assert caplog.text.count("out of memory") == 0


def test_a_preview_is_halved_too(monkeypatch):
    pruner = Pruner(tiny.tiny_model(), BATCHES, ridge=1e-4)
    expected = pruner.preview(0.6)
    little_memory(monkeypatch, measurement, "forward_and_top", most=300)
    assert Pruner(tiny.tiny_model(), BATCHES, ridge=1e-4).preview(0.6) == expected


def test_time_is_that_of_all_attempts(monkeypatch):
    ticks = itertools.count()
    for module in (pruner_module, progress):
        monkeypatch.setattr(module, "perf_counter", lambda: next(ticks))
    attempts = []
    run = Pruner._run
    monkeypatch.setattr(Pruner, "_run", lambda self, *args: attempts.append(1) or run(self, *args))
    little_memory(monkeypatch, measurement, "forward_and_top", most=60)
    pruned = prune(tiny.tiny_model(), BATCHES, **OPTIONS)
    assert len(attempts) > 1
    assert pruned.seconds == next(ticks) - 1  # from the first reading of the clock to the last
    assert sum(step.seconds for step in pruned.steps) < pruned.seconds


def test_a_checkpoint_serves_a_run_whose_batches_were_halved(monkeypatch, tmp_path):
    model = tiny.tiny_model()
    with monkeypatch.context() as scarce:
        little_memory(scarce, measurement, "forward_and_top", most=300)
        first = prune(model, BATCHES, **OPTIONS, checkpoint=tmp_path / "kept")
    (tmp_path / "kept" / "step-005.safetensors").unlink()
    again = prune(model, BATCHES, **OPTIONS, checkpoint=tmp_path / "kept")  # batches are large again
    assert [step.kept for step in again.steps] == [step.kept for step in first.steps]


def test_a_checkpoint_of_a_pruner_that_halved_before_serves_another(monkeypatch, tmp_path):
    model = tiny.tiny_model()
    with monkeypatch.context() as scarce:
        little_memory(scarce, measurement, "forward_and_top", most=300)
        pruner = Pruner(model, BATCHES, ridge=1e-4)
        pruner.prune(0.4)
        first = pruner.prune(0.6, checkpoint=tmp_path / "kept")
    again = prune(model, BATCHES, **OPTIONS, checkpoint=tmp_path / "kept")
    same_weights(again, first)


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), guard_memory():
        torch.zeros(2, 3) @ torch.zeros(2, 3)
    with pytest.raises(OutOfMemory), guard_memory():
        torch.empty(2**60)  # the host's allocator has an error of its own


def test_the_pruner_stays_with_the_batches_that_fitted(monkeypatch):
    little_memory(monkeypatch, measurement, "forward_and_top", most=300)
    pruner = Pruner(tiny.tiny_model(), BATCHES, ridge=1e-4)
    one, two = pruner.prune(0.4), pruner.prune(0.6)
    assert max(batch.mask.numel() for batch in pruner.shared.sample.batches) <= 300
    assert one.reduction < two.reduction


def test_errors_of_all_allocators_mean_out_of_memory():
    for text in ("CUDA out of memory. Tried", "can't allocate memory: you tried", "could not create a primitive"):
        assert is_out_of_memory(RuntimeError(f"[enforce fail] {text}"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))
