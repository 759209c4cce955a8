"""An output folder is complete or absent, whatever happens while it is written."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

import kprune
from kprune.checkpoints.atomic import remove_leftovers, require_writable, staged_folder


def test_a_folder_is_whole_or_absent(tmp_path):
    target = tmp_path / "out"

    def write_and_fail():
        with staged_folder(target) as staging:
            (staging / "half").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    assert list(tmp_path.iterdir()) == []
    with staged_folder(target) as staging:
        (staging / "config.json").write_text("{}")
    assert [path.name for path in target.iterdir()] == ["config.json"]


def test_an_existing_folder_is_replaced_only_when_asked_and_only_by_a_whole_one(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "config.json").write_text("old")
    (target / "model.safetensors").write_text("old")
    with (
        pytest.raises(kprune.KpruneError, match="exists; choose another folder, or pass --overwrite"),
        staged_folder(target),
    ):
        pass
    with pytest.raises(ZeroDivisionError), staged_folder(target, overwrite=True):
        1 / 0  # noqa: B018
    assert (target / "config.json").read_text() == "old"
    with staged_folder(target, overwrite=True) as staging:
        (staging / "config.json").write_text("new")
    assert (target / "config.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("files", [["mother.txt"], ["config.json", "index.html", "model.safetensors"], ["config.json"]])
def test_a_folder_that_is_no_checkpoint_is_never_replaced(files, tmp_path):
    (tmp_path / "mine").mkdir()
    for name in files:
        (tmp_path / "mine" / name).write_text("dear")

    def replace():
        with staged_folder(tmp_path / "mine", overwrite=True):
            pass

    with pytest.raises(kprune.KpruneError, match=r"mine is not just a checkpoint \(it holds .*\) and is not replaced"):
        replace()
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == sorted(files)


def test_a_linked_folder_is_replaced_behind_its_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/model.safetensors").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with staged_folder(tmp_path / "link", overwrite=True) as staging:
        (staging / "model.safetensors").write_text("new")
    assert (tmp_path / "there/model.safetensors").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "there"]


def test_of_two_runs_into_one_folder_the_second_does_not_replace_the_first(tmp_path):
    def both():
        with staged_folder(tmp_path / "out") as slow:
            (slow / "config.json").write_text("slow")
            (tmp_path / "out").mkdir()  # as the other run does
            (tmp_path / "out/config.json").write_text("fast")

    with pytest.raises(kprune.KpruneError, match="out was written by another run meanwhile; choose another folder"):
        both()
    assert (tmp_path / "out/config.json").read_text() == "fast"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("place", ["/proc", "/proc/none/deep"])
def test_a_folder_that_cannot_be_written_is_refused_at_once(place):
    with pytest.raises(kprune.KpruneError, match=r"cannot write to /proc: .*; choose another folder"):
        require_writable(Path(place) / "out", overwrite=False)


def test_a_folder_that_cannot_be_looked_at_is_refused(monkeypatch, tmp_path):
    def forbidden(path):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as without_rights:
        without_rights.setattr(Path, "exists", forbidden)
        with pytest.raises(kprune.KpruneError, match=r"cannot write to .*: Permission denied; choose another folder"):
            require_writable(tmp_path / "out", overwrite=False)
    with pytest.raises(kprune.KpruneError, match="/ exists; choose another folder"):
        require_writable(Path("/"), overwrite=False)


def test_what_a_killed_run_left_is_cleared_away_by_the_next(tmp_path):
    folder = tmp_path / "out [1]"
    fork = multiprocessing.get_context("fork")  # a forked process need not import torch again
    is_writing = fork.Event()

    def write_for_ever():
        with staged_folder(folder) as staging:
            (staging / "half").write_text("x")
            is_writing.set()
            signal.pause()

    process = fork.Process(target=write_for_ever)
    process.start()
    assert is_writing.wait(60)
    left = [path.name for path in tmp_path.iterdir()]
    assert left == [f".out [1].{process.pid}.partial"]
    remove_leftovers(folder)
    assert [path.name for path in tmp_path.iterdir()] == left  # its process is alive
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    remove_leftovers(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_about_to_be_replaced_gets_its_name_back(tmp_path):
    retired = tmp_path / ".out.123.retired"
    retired.mkdir()
    (retired / "config.json").write_text("old")
    remove_leftovers(tmp_path / "out")
    assert (tmp_path / "out" / "config.json").read_text() == "old"
    retired.mkdir()  # killed after the new one had its name
    remove_leftovers(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    other = tmp_path / ".out.v2.123.retired"  # of another folder, out.v2
    other.mkdir()
    remove_leftovers(tmp_path / "out")
    assert other.exists()
