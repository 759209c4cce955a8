"""The exit codes and messages of the whole command, and its entry point."""

from importlib.metadata import entry_points

import click
import pytest
from click.testing import CliRunner

from kprune.__main__ import main as entry_point
from kprune.cli.group import Commands
from kprune.cli.main import main
from kprune.errors import BadOptions, BadSample, KpruneError


def test_the_installed_script_is_the_command():
    (script,) = entry_points(group="console_scripts", name="kprune")
    assert script.load() is entry_point


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KpruneError("value [x] is wrong; change it."), 1, "kprune: value [x] is wrong; change it.\n"),
        (BadSample("too small " * 30), 1, "kprune: " + "too small " * 30 + "\n"),
        (BadOptions("pass one."), 2, "pass one."),
        (MemoryError(), 1, "kprune: not enough memory; use fewer --tokens"),
        (KeyboardInterrupt(), 130, "kprune: interrupted; no model was written.\n"),
    ],
)
def test_errors_are_one_sentence_and_an_exit_code(error, code, message):
    group = Commands("kprune")

    @group.command("fail")
    def fail() -> None:
        raise error

    result = CliRunner().invoke(group, ["fail"])
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_a_bug_is_not_hidden():
    group = Commands("kprune")

    @group.command("fail")
    def fail() -> None:
        raise RuntimeError("a bug")

    assert isinstance(CliRunner().invoke(group, ["fail"]).exception, RuntimeError)


def test_each_process_of_several_signs_its_message(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    group = Commands("kprune")

    @group.command("fail")
    def fail() -> None:
        raise KpruneError("no sample.")

    assert CliRunner().invoke(group, ["fail"]).stderr == "kprune, process 1 of 2: no sample.\n"


def test_a_misspelt_command_is_a_usage_error():
    result = CliRunner().invoke(main, ["prun"])
    assert (result.exit_code, "No such command 'prun'" in result.stderr) == (2, True)
    assert isinstance(main, click.Group)


def test_a_usage_error_shows_the_usage_of_its_command():
    result = CliRunner().invoke(main, ["prune", "model", "out", "--reduction", "0.5", "--speedup", "2"])
    assert result.exit_code == 2
    assert "Usage: main prune [OPTIONS] MODEL OUT" in result.output
    assert "Error: pass exactly one of --reduction, --max-drop and --speedup." in result.output


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["tasks", "--json"], 0),
        (["prune", "--help"], 0),
        (["inspect", "missing"], 1),
        (["evaluate", "missing", "--text", "missing.txt"], 1),
        (["prune", "model", "out"], 2),
        (["tasks", "--quiet", "--verbose"], 2),
        (["bench", "model", "--shape", "wide"], 2),
    ],
)
def test_exit_codes_are_those_of_the_documentation(words, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, list(tmp_path.iterdir())) == (code, [])
