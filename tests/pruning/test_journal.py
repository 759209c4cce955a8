"""Runs that stop and continue, compared with runs that did not stop."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import tiny
import torch
from command_line import kprune, write_checkpoint, write_text
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from kprune import KpruneError, Pruner, prune
from kprune.errors import BadCheckpoint
from kprune.models.sublayer import find
from kprune.pruning import teacher
from kprune.pruning.baselines import ziplm
from kprune.pruning.baselines.kwon import MaskTuning
from kprune.pruning.budgets import Budget
from kprune.pruning.journal import PREDICTIONS, RESULT, RUN, FolderJournal, fingerprint
from kprune.pruning.registry import METHODS

BATCHES = tiny.batched(tiny.texts(64))
OPTIONS = {"reduction": 0.6, "ridge": 1e-4}


@pytest.fixture(autouse=True)
def few_coefficients(monkeypatch):
    """The ZipLM-style rival tries few models."""
    monkeypatch.setattr(ziplm, "DRAWN", 1)
    monkeypatch.setattr(ziplm, "MUTATED", 1)


class Stopped(Exception):
    pass


def stop_after(steps):
    """A progress callback that stops the run at the first report after so many finished sublayers."""
    done = []

    def progress(report):
        if report.step is not None:
            done.append(report.step)
        elif len(done) == steps:
            raise Stopped

    return progress


def prune_with_snapshots(folder, model, **options):
    """The result of a run, and copies of its journal: one of every state in which a kill could leave it."""
    journal = folder / "journal"
    snapshots = []

    def progress(report):
        names = sorted(path.name for path in journal.iterdir())
        if not snapshots or names != sorted(path.name for path in snapshots[-1].iterdir()):
            snapshots.append(shutil.copytree(journal, folder / str(len(snapshots))))

    return prune(model, BATCHES, **options, checkpoint=journal, progress=progress), snapshots


def steps_in(folder):
    return len(list(folder.glob("step-*.safetensors")))


def same(one, two):
    assert [(step.kept, step.error_before, step.error_after) for step in one.steps] == [
        (step.kept, step.error_before, step.error_after) for step in two.steps
    ]
    ours, theirs = one.model.state_dict(), two.model.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def resume_from_every_state(folder, model, **options):
    """Every snapshot of a run leads to the bits of a run without a journal. Returns the snapshots."""
    expected = prune(model, BATCHES, **options)
    kept, snapshots = prune_with_snapshots(folder, model, **options)
    same(kept, expected)
    assert sorted({steps_in(snapshot) for snapshot in snapshots}) == list(range(len(expected.steps) + 1))
    for snapshot in snapshots:
        reports = []
        same(prune(model, BATCHES, **options, checkpoint=snapshot, progress=reports.append), expected)
        assert reports[-1].fraction == pytest.approx(1.0)
        assert [report.step.name for report in reports if report.step] == [step.name for step in expected.steps]
    return snapshots


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The journal of a finished run by criterion 'fisher'; tests use copies."""
    folder = tmp_path_factory.mktemp("finished") / "journal"
    prune(tiny.tiny_model(), BATCHES, **OPTIONS, criterion="fisher", checkpoint=folder)
    return folder


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        *(({"criterion": "fisher"}, kind) for kind in ("classification", "embedding", "masked language model")),
        *(({"criterion": "compensated"}, kind) for kind in ("classification", "embedding", "masked language model")),
        ({"criterion": "paper"}, "classification"),
        ({"criterion": "released", "refresh": 2}, "classification"),
        ({"criterion": "compensated", "refresh": 3}, "classification"),
        ({"criterion": "compensated", "refresh": 3}, "masked language model"),
        ({"criterion": "fisher", "refit": False}, "embedding"),
    ],
    ids=str,
)
def test_a_stopped_run_goes_on_to_the_same_result(options, kind, tmp_path):
    model = tiny.tiny_model("bert", kind)
    last = resume_from_every_state(tmp_path, model, **OPTIONS, **options)[-1]
    # A finished run is not repeated: nothing is measured, and nothing fitted.
    files = {path.name: path.stat().st_mtime_ns for path in last.iterdir()}
    prune(model, BATCHES, **OPTIONS, **options, checkpoint=last)
    assert {path.name: path.stat().st_mtime_ns for path in last.iterdir()} == files


@pytest.mark.parametrize("family", tiny.SEAM_FAMILIES)
def test_a_stopped_run_of_another_family_goes_on_to_the_same_result(family, tmp_path):
    resume_from_every_state(tmp_path, tiny.tiny_model(family), **OPTIONS, criterion="fisher")


@pytest.mark.parametrize("criterion", ["compensated", "fisher"])
def test_a_stopped_run_that_fits_new_biases_goes_on_to_the_same_result(criterion, tmp_path):
    resume_from_every_state(tmp_path, tiny.tiny_model("llama"), **OPTIONS, criterion=criterion, bias=True)


@pytest.mark.parametrize(
    ("method", "family"),
    [
        *(
            (method, "bert")
            for method in METHODS
            if method != "kprune" and not method.startswith(("dynabert", "ebert"))
        ),
        ("flap", "llama"),
        ("wanda-sp", "llama"),
    ],
)
def test_a_stopped_run_of_a_rival_goes_on_to_the_same_result(method, family, tmp_path):
    model = tiny.tiny_model(family)
    options = {"reduction": 0.3 if method == "kcm" else 0.5, "method": method, **tiny.QUICK.get(method, {})}
    resume_from_every_state(tmp_path, model, **options)


def test_kwons_tuning_stays_off_after_a_stop(tmp_path, monkeypatch):
    """Masks diverge in the first FFN: a resumed run must not tune the sublayers above."""
    model, options = tiny.tiny_model(), {"reduction": 0.5, "method": "kwon"}
    expected, snapshots = prune_with_snapshots(tmp_path, model, **options)
    assert [step.error_before == step.error_after for step in expected.steps] == [False, *[True] * 5]
    assert [steps_in(snapshot) for snapshot in snapshots] == list(range(7))
    forgetful = shutil.copytree(snapshots[2], tmp_path / "forgetful")
    same(prune(model, BATCHES, **options, checkpoint=snapshots[2]), expected)
    monkeypatch.setattr(MaskTuning, "restore", lambda self, state: None)
    tuned = prune(model, BATCHES, **options, checkpoint=forgetful)
    assert tuned.steps[2].error_before != tuned.steps[2].error_after  # the state is needed in this case


@pytest.mark.parametrize("kind", ["classification", "masked language model"])
def test_a_resumed_run_takes_the_teachers_predictions_from_the_journal(kind, tmp_path, monkeypatch):
    model, options = tiny.tiny_model("bert", kind), {**OPTIONS, "criterion": "fisher"}
    expected, snapshots = prune_with_snapshots(tmp_path, model, **options)
    assert all((folder / f"{PREDICTIONS}.safetensors").exists() for folder in snapshots if steps_in(folder))

    def repeated(*args, **options):
        raise AssertionError("a pass of the teacher was repeated")

    monkeypatch.setattr(teacher, "forward_and_top", repeated)
    for snapshot in snapshots:
        if steps_in(snapshot):
            same(prune(model, BATCHES, **options, checkpoint=snapshot), expected)


def test_predictions_are_kept_only_where_they_are_compared_again(tmp_path, finished):
    assert (finished / f"{PREDICTIONS}.safetensors").exists()
    prune(tiny.tiny_model(), BATCHES, **OPTIONS, criterion="compensated", checkpoint=tmp_path)
    assert not (tmp_path / f"{PREDICTIONS}.safetensors").exists()


@pytest.mark.parametrize("criterion", ["fisher", "compensated"])
def test_where_nothing_is_removed_at_the_end_the_result_is_the_same(criterion, tmp_path):
    """Once all remaining units fit, nothing is measured any more, in a resumed run as in the first."""
    model = tiny.tiny_model()
    with torch.no_grad():
        find(model)[1].consumer.weight.mul_(1e-4)  # its units are removed first
    options = {"reduction": 0.05, "ridge": 1e-4, "align": 1, "criterion": criterion, "refresh": 1}
    expected = prune(model, BATCHES, **options)
    assert len(expected.steps[-1].kept) == expected.steps[-1].units
    resume_from_every_state(tmp_path, model, **options)


def test_where_nothing_is_removed_at_first_the_result_is_the_same(tmp_path):
    """Sublayers that keep all units leave both streams equal, and the predictions are recorded repeatedly."""
    model, options = tiny.tiny_model(), {"reduction": 0.05, "ridge": 1e-4, "align": 1}
    for criterion in ("compensated", "fisher"):
        expected = prune(model, BATCHES, **options, criterion=criterion)
        assert len(expected.steps[0].kept) == expected.steps[0].units
        resume_from_every_state(tmp_path / criterion, model, **options, criterion=criterion)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reduction": 0.7}, "reduction is 0.6 there and 0.7 here"),
        ({"criterion": "paper"}, "criterion is fisher there and paper here"),
        ({"seed": 3}, "seed is 0 there and 3 here"),
        ({"align": 4}, "align is 16 there and 4 here"),
        ({"method": "magnitude"}, "method is kprune there and magnitude here"),
    ],
)
def test_another_runs_folder_is_refused_with_the_difference(finished, change, message):
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    with pytest.raises(KpruneError, match=rf"belongs to another run: {message}; choose another folder, or delete it"):
        prune(tiny.tiny_model(), BATCHES, **{**OPTIONS, "criterion": "fisher", **change}, checkpoint=finished)
    assert {path.name: path.read_bytes() for path in finished.iterdir()} == before


def test_another_model_or_sample_is_refused(finished):
    model, options = tiny.tiny_model(), {**OPTIONS, "criterion": "fisher", "checkpoint": finished}
    other = tiny.tiny_model()
    with torch.no_grad():
        other.classifier.bias[0] += 1e-6
    with pytest.raises(KpruneError, match="the model's weights differ"):
        prune(other, BATCHES, **options)
    with pytest.raises(KpruneError, match="the sample's tokens differ"):
        prune(model, BATCHES[:-1], **options)


def test_a_journal_of_version_0_1_0_is_refused_by_its_version(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "old")
    run = json.loads((folder / RUN).read_text())
    del run["method"]
    (folder / RUN).write_text(json.dumps({**run, "kprune": "0.1.0"}) + "\n")
    message = r"old belongs to another run: kprune's version is 0\.1\.0 there and .* here; choose another folder, or"
    with pytest.raises(KpruneError, match=message):
        prune(tiny.tiny_model(), BATCHES, **OPTIONS, criterion="fisher", checkpoint=folder)
    assert steps_in(folder) == 6


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(KpruneError, match=r"contains notes\.txt, which is not a checkpoint's file; choose"):
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
    options = {**OPTIONS, "criterion": "compensated", "refresh": 2, "checkpoint": tmp_path}
    prune(model, BATCHES, **options)
    pruner = Pruner(model, BATCHES, **options)
    for name in ("step-001.safetensors", "measured-000.safetensors", "predictions.safetensors"):
        content = (tmp_path / name).read_bytes()
        generator = random.Random(0)
        for _ in range(20):
            at = generator.randrange(8, len(content))
            changed = bytes([content[at] ^ (1 << generator.randrange(8))])
            for damaged in (content[:at], content[:at] + changed + content[at + 1 :]):
                (tmp_path / name).write_bytes(damaged)
                with pytest.raises(BadCheckpoint, match=f"{name} is damaged.*delete"):
                    pruner.with_config().prune()
        (tmp_path / name).write_bytes(content)
    # A step of another sublayer is undamaged, but refused too.
    (tmp_path / "step-000.safetensors").write_bytes((tmp_path / "step-001.safetensors").read_bytes())
    with pytest.raises(BadCheckpoint, match=r"step-000.safetensors is damaged, or from another run; delete"):
        pruner.with_config().prune()


@pytest.mark.parametrize("damage", [b"\x8a", b"[" * 100_000, b"[1]\n", b"{}\n", b"\0"], ids=repr)
def test_a_damaged_account_of_the_run_is_refused(damage, finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "kept")
    (folder / RUN).write_bytes(damage)
    with pytest.raises(KpruneError, match=r"is not a checkpoint file|belongs to another run"):
        prune(tiny.tiny_model(), BATCHES, **OPTIONS, criterion="fisher", checkpoint=folder)


def test_a_run_killed_while_it_wrote_its_identity_starts_again(finished, tmp_path):
    content = (finished / RUN).read_bytes()
    expected = load_file(finished / "step-005.safetensors")
    for length in (0, 1, len(content) - 1):
        folder = tmp_path / str(length)
        folder.mkdir()
        (folder / RUN).write_bytes(content[:length])
        prune(tiny.tiny_model(), BATCHES, **OPTIONS, criterion="fisher", checkpoint=folder)
        assert (folder / RUN).read_bytes() == content
        assert torch.equal(load_file(folder / "step-005.safetensors")["weight"], expected["weight"])


def test_a_folder_that_cannot_be_removed_is_emptied(finished, tmp_path, monkeypatch):
    shutil.copytree(finished, tmp_path / "kept")

    def busy(path):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Path, "rmdir", busy)
    FolderJournal(tmp_path / "kept").remove()
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


@given(content=st.binary() | st.recursive(st.none() | st.text(), lambda part: st.dictionaries(st.text(), part)))
def test_a_damaged_note_of_a_result_vouches_for_no_folder(content):
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "out").mkdir()
        journal = FolderJournal(folder)
        journal.add_result(folder / "out", folder / "out")
        assert journal.has_written(folder / "out")
        assert not journal.has_written(folder)
        (folder / "out" / "model.safetensors").write_bytes(b"another's")
        assert not journal.has_written(folder / "out")
        (folder / RESULT).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        assert not journal.has_written(folder / "out")


def test_a_killed_command_goes_on_and_leaves_nothing_behind(tmp_path):
    """Killed at one moment after another, and started again with the same arguments."""
    source, text = write_checkpoint(tmp_path / "source"), write_text(tmp_path / "text.txt", lines=150)
    arguments = ["prune", source, "--text", text, "--tokens", 2000, "--reduction", 0.6, "--criterion", "fisher"]
    assert kprune(*arguments, tmp_path / "clean").exit_code == 0
    work = tmp_path / "work"
    work.mkdir()
    moments = [
        ("before", "predictions"),
        ("during", "predictions"),
        ("before", "step-000"),
        ("during", "step-000"),
        ("after", "step-000"),
        ("during", "step-003"),
        ("after", "step-005"),
        ("result", ""),
        ("remove", ""),
        ("none", ""),
    ]
    arguments += [work / "out", "--checkpoint", work / "kept"]
    command = [sys.executable, Path(__file__).with_name("kill_worker.py"), json.dumps(moments), work, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run([*map(str, command)], env=environment, check=True, capture_output=True, text=True).stdout
    runs = [json.loads(line) for line in output.splitlines()]
    assert [code for code, _ in runs] == [*[-signal.SIGKILL] * 9, 0]
    steps = [sum(name.endswith(".safetensors") and "/step-" in name for name in names) for _, names in runs]
    assert steps == [0, 0, 0, 0, 1, 3, 6, 6, 5, 0]
    for _, names in runs[:8]:  # nothing has the result's name before the result is complete
        assert not any(name.startswith("out/") for name in names)
    assert "out/model.safetensors" in runs[8][1]
    assert all(name.startswith("out/") for name in runs[9][1])
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (work / "out", tmp_path / "clean"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert [path.name for path in work.iterdir()] == ["out"]


def test_a_command_killed_between_its_result_and_the_end_of_its_checkpoint_tidies_up(tmp_path, monkeypatch):
    source, text = write_checkpoint(tmp_path / "source"), write_text(tmp_path / "text.txt", lines=150)

    def run(reduction=0.6):
        options = ("--text", text, "--tokens", 2000, "--reduction", reduction, "--checkpoint", tmp_path / "kept")
        return kprune("prune", source, tmp_path / "out", *options)

    def killed(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as early:
        early.setattr(FolderJournal, "remove", killed)
        assert run().exit_code == 130
    weights = tmp_path / "out" / "model.safetensors"
    content = weights.read_bytes()
    assert (tmp_path / "kept").exists()
    other = run(reduction=0.5)
    assert (other.exit_code, "belongs to another run: reduction is 0.6" in other.stderr) == (1, True)
    weights.write_bytes(content[:-1] + b"x")  # not the run's own result: it is not replaced
    stranger = run()
    assert (stranger.exit_code, "out exists; choose another folder" in stranger.stderr) == (1, True)
    weights.write_bytes(content)
    assert run().exit_code == 0
    assert weights.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source", "text.txt"]
