"""Help pages: headings, examples; and the completion scripts."""

import os
import shlex
import subprocess
import sys

import click
import pytest
from command_line import kprune

from kprune.cli.group import Work
from kprune.cli.help_page import group_of
from kprune.cli.main import main
from kprune.config import GROUPS


@pytest.mark.parametrize("name", main.commands)
def test_every_command_has_examples_that_it_accepts(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in ("results.jsonl", "kept"):
        (tmp_path / file).touch()
    command = main.commands[name]
    assert isinstance(command, Work)
    assert command.examples
    shown = kprune(name, "--help").stdout.partition("\nExamples:\n")[2]
    for example in command.examples:
        line = example.partition("  # ")[0]
        assert f"  {line}\n" in shown  # in one line, to be copied
        words = shlex.split(line.rpartition("| ")[2])
        assert words[:2] == ["kprune", name]
        command.make_context(name, words[2:])


@pytest.mark.parametrize("name", main.commands)
def test_every_option_is_under_one_heading(name):
    command = main.commands[name]
    page = kprune(name, "--help").stdout
    headings = [line.removesuffix(":") for line in page.splitlines() if line.endswith(":") and line[0] != " "]
    used = {group_of(param) for param in command.get_params(click.Context(command)) if isinstance(param, click.Option)}
    assert headings == [*(heading for group, heading in GROUPS.items() if group in used), "Examples"]
    for param in command.get_params(click.Context(command)):
        if isinstance(param, click.Option):
            section = page.partition(f"\n{GROUPS[group_of(param)]}:\n")[2].partition("\n\n")[0]
            entries = [line.replace(",", " ").split() for line in section.splitlines() if line.startswith("  -")]
            assert len([words for words in entries if {*words[: len(param.opts)]} & {*param.opts}]) == 1, param.opts


def test_help_has_a_short_name_and_names_every_command():
    page = kprune("-h").stdout
    assert page == kprune("--help").stdout
    assert [name for name in main.commands if f"  {name} " not in page] == []
    assert "`kprune COMMAND --help`" in page
    assert kprune("prune", "-h").stdout == kprune("prune", "--help").stdout


def test_what_is_needed_most_comes_first():
    page = kprune("prune", "--help").stdout
    places = [page.index(f"\n{heading}:") for heading in ("How much", "From what", "Healing", "Output", "Advanced")]
    assert places == sorted(places)
    assert places[0] < page.index("--reduction") < places[1] < page.index("--text PATH") < places[2]
    assert places[-1] < page.index("--ridge") < page.index("--quiet")


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete "), ("zsh", "#compdef kprune"), ("fish", "complete ")])
def test_each_shell_gets_a_completion_script(shell, word):
    environment = {**os.environ, "_KPRUNE_COMPLETE": f"{shell}_source"}
    done = subprocess.run([sys.executable, "-m", "kprune"], capture_output=True, text=True, check=True, env=environment)
    assert word in done.stdout
    assert f"_KPRUNE_COMPLETE={shell}_complete" in done.stdout
