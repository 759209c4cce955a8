"""Runs that are stopped and go on, held against runs that were not."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import tiny
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from kprune import KpruneError, Pruner, prune
from kprune.budget import Budget
from kprune.checkpoint import RESULT, RUN, Checkpoint, fingerprint
from kprune.cli import main
from kprune.demo import embedded_model, python_documentation
from kprune.errors import BadCheckpoint
from kprune.sublayer import find

BATCHES = tiny.batched(tiny.texts(64))
OPTIONS = {"reduction": 0.6, "ridge": 1e-4}


class Stopped(Exception):
    pass


def stop_after(steps):
    """A progress callback that stops the run in the middle of what comes after so many sublayers."""
    done = []

    def progress(told):
        if told.step is not None:
            done.append(told.step)
        elif len(done) == steps:
            raise Stopped

    return progress


def same(one, two):
    assert [(step.kept, step.error_before, step.error_after) for step in one.steps] == [
        (step.kept, step.error_before, step.error_after) for step in two.steps
    ]
    ours, theirs = one.model.state_dict(), two.model.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    "options",
    [
        {"criterion": "fisher"},
        {"criterion": "paper"},
        {"criterion": "compensated"},
        {"criterion": "compensated", "refresh": 3},
        {"criterion": "fisher", "refit": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["classification", "embedding", "masked language model"])
def test_a_stopped_run_goes_on_to_the_same_result(options, kind, tmp_path):
    model = tiny.tiny_model("bert", kind)
    expected = prune(model, BATCHES, **OPTIONS, **options)
    for steps in range(len(expected.steps)):
        folder = tmp_path / str(steps)
        with pytest.raises(Stopped):
            prune(model, BATCHES, **OPTIONS, **options, checkpoint=folder, progress=stop_after(steps))
        assert len(list(folder.glob("step-*.safetensors"))) == steps
        told = []
        same(prune(model, BATCHES, **OPTIONS, **options, checkpoint=folder, progress=told.append), expected)
        assert told[-1].fraction == pytest.approx(1.0)
    # What is finished is not done again: nothing is measured, and nothing fitted.
    files = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    same(prune(model, BATCHES, **OPTIONS, **options, checkpoint=folder), expected)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == files


@pytest.mark.parametrize("criterion", ["fisher", "compensated"])
def test_where_nothing_is_removed_at_the_end_the_result_is_the_same(criterion, tmp_path):
    """Once all that is left fits, nothing is measured any more, and what was known is forgotten, stopped or not."""
    model = tiny.tiny_model(num_hidden_layers=3)
    with torch.no_grad():
        find(model)[1].consumer.weight.mul_(1e-4)  # what must go, goes from here
    options = {"reduction": 0.05, "ridge": 1e-4, "align": 1, "criterion": criterion, "refresh": 1}
    expected = prune(model, BATCHES, **options)
    assert len(expected.steps[-1].kept) == expected.steps[-1].units
    for steps in range(1, 6):
        with pytest.raises(Stopped):
            prune(model, BATCHES, **options, checkpoint=tmp_path / str(steps), progress=stop_after(steps))
        same(prune(model, BATCHES, **options, checkpoint=tmp_path / str(steps)), expected)


def test_where_nothing_is_removed_at_first_the_result_is_the_same(tmp_path):
    """Sublayers that keep all their units leave the streams equal, and the references are noted again and again."""
    model = tiny.tiny_model(num_hidden_layers=3)
    options = {"reduction": 0.05, "ridge": 1e-4, "align": 1}
    expected = prune(model, BATCHES, **options)
    assert len(expected.steps[0].kept) == expected.steps[0].units
    for steps in (1, 2, 3):
        with pytest.raises(Stopped):
            prune(model, BATCHES, **options, checkpoint=tmp_path / str(steps), progress=stop_after(steps))
        same(prune(model, BATCHES, **options, checkpoint=tmp_path / str(steps)), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reduction": 0.7}, "reduction is 0.6 there and 0.7 here"),
        ({"criterion": "paper"}, "criterion is fisher there and paper here"),
        ({"seed": 3}, "seed is 0 there and 3 here"),
        ({"align": 4}, "align is 16 there and 4 here"),
    ],
)
def test_another_runs_folder_is_refused_with_the_difference(tmp_path, change, message):
    model = tiny.tiny_model()
    prune(model, BATCHES, **OPTIONS, criterion="fisher", checkpoint=tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(KpruneError, match=message):
        prune(model, BATCHES, **{**OPTIONS, "criterion": "fisher", **change}, checkpoint=tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_another_model_or_sample_is_refused(tmp_path):
    model = tiny.tiny_model()
    prune(model, BATCHES, **OPTIONS, checkpoint=tmp_path)
    other = tiny.tiny_model()
    with torch.no_grad():
        other.classifier.bias[0] += 1e-6
    with pytest.raises(KpruneError, match="the model's weights differ"):
        prune(other, BATCHES, **OPTIONS, checkpoint=tmp_path)
    with pytest.raises(KpruneError, match="the sample's tokens differ"):
        prune(model, BATCHES[:-1], **OPTIONS, checkpoint=tmp_path)


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(KpruneError, match=r"holds notes.txt, which is no checkpoint's"):
        prune(tiny.tiny_model(), BATCHES, **OPTIONS, checkpoint=tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(KpruneError, match="cannot keep a checkpoint in"):
        prune(tiny.tiny_model(), BATCHES, **OPTIONS, checkpoint=tmp_path / "file")


def test_weights_that_are_the_users_own_are_left_alone(tmp_path):
    for name, content in (("lora.safetensors", b"mine"), (RUN, b"{}")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(content)
        with pytest.raises(KpruneError, match="choose another folder"):
            prune(tiny.tiny_model(), BATCHES, **OPTIONS, checkpoint=folder)
        assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [(name, content)]


def test_prices_that_are_no_whole_numbers_fit_in_spite_of_rounding(tmp_path):
    def price(sublayer, length):
        return 0.1 * torch.arange(sublayer.units + 1, dtype=torch.float64) * (1 + sublayer.index / 7)

    pruner = Pruner(tiny.tiny_model(num_hidden_layers=7), BATCHES, ridge=1e-4, budget=Budget("tenths", price))
    assert pruner.preview(0.0) == [sublayer.units for sublayer in find(pruner.model)]
    assert all(len(step.kept) == step.units for step in pruner.prune(0.0).steps)


def test_two_runs_do_not_share_a_folder(tmp_path):
    model = tiny.tiny_model()

    def second(progress):
        with pytest.raises(KpruneError, match="another run is using"):
            prune(model, BATCHES, **OPTIONS, checkpoint=tmp_path)
        raise Stopped

    with pytest.raises(Stopped):
        prune(model, BATCHES, **OPTIONS, checkpoint=tmp_path, progress=second)
    prune(model, BATCHES, **OPTIONS, checkpoint=tmp_path)  # the first has let go


def test_a_damaged_file_is_named(tmp_path):
    model = tiny.tiny_model()
    prune(model, BATCHES, **OPTIONS, criterion="compensated", checkpoint=tmp_path)
    for name in ("step-001.safetensors", "measured-000.safetensors"):
        content = (tmp_path / name).read_bytes()
        generator = random.Random(0)
        for _ in range(20):
            at = generator.randrange(8, len(content))
            changed = bytes([content[at] ^ (1 << generator.randrange(8))])
            for damaged in (content[:at], content[:at] + changed + content[at + 1 :]):
                (tmp_path / name).write_bytes(damaged)
                with pytest.raises(BadCheckpoint, match=f"{name} is damaged.*delete"):
                    prune(model, BATCHES, **OPTIONS, criterion="compensated", checkpoint=tmp_path)
        (tmp_path / name).write_bytes(content)
    # A step of another sublayer is sound in itself, and refused all the same.
    (tmp_path / "step-000.safetensors").write_bytes((tmp_path / "step-001.safetensors").read_bytes())
    with pytest.raises(BadCheckpoint, match=r"step-000.safetensors is damaged, or of another run"):
        prune(model, BATCHES, **OPTIONS, criterion="compensated", checkpoint=tmp_path)


@pytest.mark.parametrize("damage", [b"\x8a", b"[" * 100_000, b"[1]\n", b"{}\n", b"\0"], ids=repr)
def test_a_damaged_account_of_the_run_is_refused(damage, tmp_path):
    model = tiny.tiny_model()
    prune(model, BATCHES, **OPTIONS, checkpoint=tmp_path)
    (tmp_path / RUN).write_bytes(damage)
    with pytest.raises(KpruneError, match=r"is not a checkpoint's|belongs to another run"):
        prune(model, BATCHES, **OPTIONS, checkpoint=tmp_path)


def test_a_folder_that_cannot_be_removed_is_emptied(tmp_path, monkeypatch):
    prune(tiny.tiny_model(), BATCHES, **OPTIONS, checkpoint=tmp_path / "kept")

    def busy(path):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Path, "rmdir", busy)
    Checkpoint(tmp_path / "kept").remove()
    assert list((tmp_path / "kept").iterdir()) == []


def test_fingerprints_tell_tensors_apart():
    tensor = torch.arange(6.0)
    assert fingerprint([("a", tensor)]) == fingerprint([("a", tensor.clone())])
    others = [
        [("b", tensor)],
        [("a", tensor.view(2, 3))],
        [("a", tensor.double())],
        [("a", -tensor)],
        [("a", tensor[::2])],
    ]
    assert len({fingerprint(each) for each in [[("a", tensor)], *others]}) == 6


def test_a_pruner_keeps_one_folder_per_reduction(tmp_path):
    pruner = Pruner(tiny.tiny_model(), BATCHES, ridge=1e-4)
    for reduction in (0.3, 0.6):
        pruner.prune(reduction, checkpoint=tmp_path / str(reduction))
    assert json.loads((tmp_path / "0.6" / RUN).read_text())["reduction"] == 0.6
    assert len(find(pruner.model)) == len(list((tmp_path / "0.6").glob("step-*")))


def test_a_killed_command_goes_on_and_leaves_nothing_behind(tmp_path):
    """Killed at any moment, several times over, and started again with the same words."""
    source = tmp_path / "source"
    tokenizer = embedded_model().load_tokenizer()
    model = tiny.tiny_model("bert", vocab_size=len(tokenizer), pad_token_id=0, num_hidden_layers=6)
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(line.split()) for line in python_documentation()[:400]), encoding="utf-8")
    words = ["prune", source, "--text", text, "--tokens", 6000, "--reduction", 0.6, "--criterion", "fisher"]
    command = [sys.executable, "-m", "kprune", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(tmp_path / "clean")], check=True, env=environment, capture_output=True)
    command += [str(tmp_path / "out"), "--checkpoint", str(tmp_path / "kept")]
    generator = random.Random(0)
    for steps in (0, 3, 7):
        run = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while run.poll() is None and len(list((tmp_path / "kept").glob("step-*.safetensors"))) <= steps:
            time.sleep(0.005)
        time.sleep(0.1 * generator.random())
        run.send_signal(signal.SIGKILL)
        run.wait()
        assert not (tmp_path / "out").exists()
    subprocess.run(command, check=True, env=environment, capture_output=True)
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "clean"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean", "out", "source", "text.txt"]


def test_a_command_killed_between_its_result_and_the_end_of_its_checkpoint_tidies_up(tmp_path, monkeypatch):
    tokenizer = embedded_model().load_tokenizer()
    tiny.tiny_model("bert", vocab_size=len(tokenizer), pad_token_id=0).save_pretrained(tmp_path / "source")
    tokenizer.save_pretrained(tmp_path / "source")
    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(line.split()) for line in python_documentation()[:300]), encoding="utf-8")

    def run(reduction=0.6):
        words = ["prune", tmp_path / "source", tmp_path / "out", "--text", text, "--tokens", 4000]
        words += ["--reduction", reduction, "--checkpoint", tmp_path / "kept"]
        return CliRunner().invoke(main, list(map(str, words)))

    def killed(folder):
        raise KeyboardInterrupt

    with monkeypatch.context() as early:
        early.setattr("kprune.cli._forget", killed)
        assert run().exit_code == 130
    weights = tmp_path / "out" / "model.safetensors"
    content = weights.read_bytes()
    assert (tmp_path / "kept").exists()
    other = run(reduction=0.5)
    assert (other.exit_code, "belongs to another run: reduction is 0.6" in other.stderr) == (1, True)
    weights.write_bytes(content[:-1] + b"x")  # another's, or damaged: it is not ours to replace
    stranger = run()
    assert (stranger.exit_code, "out exists; choose another folder" in stranger.stderr) == (1, True)
    weights.write_bytes(content)
    assert run().exit_code == 0
    assert weights.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source", "text.txt"]


@given(content=st.binary() | st.recursive(st.none() | st.text(), lambda part: st.dictionaries(st.text(), part)))
def test_a_damaged_note_of_a_result_vouches_for_no_folder(content):
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "out").mkdir()
        checkpoint = Checkpoint(folder)
        checkpoint.add_result(folder / "out", folder / "out")
        assert checkpoint.has_written(folder / "out")
        assert not checkpoint.has_written(folder)
        (folder / "out" / "model.safetensors").write_bytes(b"another's")
        assert not checkpoint.has_written(folder / "out")
        (folder / RESULT).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        assert not checkpoint.has_written(folder / "out")


def test_the_command_line_says_when_a_checkpoint_has_no_use(tmp_path):
    for others in (["--max-drop", "1"], ["--reduction", "0.5", "--method", "magnitude"]):
        result = CliRunner().invoke(main, ["prune", "model", str(tmp_path / "out"), "--checkpoint", "kept", *others])
        assert result.exit_code == 2
        assert "--checkpoint goes with --reduction" in result.stderr
    for inside in ("out", "out/kept"):
        words = ["prune", "model", str(tmp_path / "out"), "--reduction", "0.5", "--checkpoint", str(tmp_path / inside)]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 2
        assert "--checkpoint must be a folder outside OUT" in result.stderr
