import shlex

import pytest

from kprune.cli.pruning import prune_command
from kprune.cli.repeating import command_text
from kprune.cli.sweeping import prune_command_for, sweep_command
from kprune.jobs.sweep_choice import Point

POINT = Point(0.5, healed=False, drop=0.0, high=1.0)
OPTIONS = 'data = ["a.csv", "b.csv"]\ncolumn = ["text"]\ntokens = 5000\nseed = 7\n'


def _pairs(command):
    """The options of a command with one value each, in any order."""
    words = shlex.split(command)
    return sorted(zip(words[4::2], words[5::2], strict=False))


@pytest.mark.parametrize("place", ["kprune.toml", "other.toml"])
def test_the_proposed_command_has_the_options_of_the_file(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    given = ["--data", "a.csv", "--data", "b.csv", "--column", "text", "--tokens", "5000", "--seed", "7"]
    by_options = prune_command_for(sweep_command.make_context("sweep", ["M", *given]), POINT)
    (tmp_path / place).write_text(f'[sweep]\n{OPTIONS}shape = "2x8"\n')
    chosen = [] if place == "kprune.toml" else ["--config", place]
    by_file = prune_command_for(sweep_command.make_context("sweep", ["M", *chosen]), POINT)
    assert _pairs(by_file) == _pairs(by_options)
    assert "a.csv" in by_file
    assert "--shape" not in by_file


def test_a_command_to_repeat_has_the_options_of_the_file_that_count(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kprune.toml").write_text(f"[prune]\n{OPTIONS}reduction = 0.6\nevaluate = true\n")
    words = shlex.split(command_text(prune_command.make_context("prune", ["M", "small", "--max-drop", "1"])))
    assert "a.csv" in words
    assert "--evaluate" in words
    assert "--max-drop" in words
    assert "--reduction" not in words  # gives way to --max-drop


def test_a_command_to_repeat_has_each_option_of_the_command_line_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kprune.toml").write_text("[prune]\ntokens = 5000\n")
    command = command_text(prune_command.make_context("prune", ["M", "small", "--tokens", "600", "--text", "a b.txt"]))
    assert _pairs(command) == [("--text", "a b.txt"), ("--tokens", "600")]
    assert shlex.split(command)[:4] == ["kprune", "prune", "M", "small"]
