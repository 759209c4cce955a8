"""`kprune.toml`: the file stands where the command line says nothing, and mistakes in it are errors."""

import click
import pytest
from command_line import kprune

from kprune.cli.main import main


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """Parses a command line beside a file."""
    monkeypatch.chdir(tmp_path)

    def parsed(content: str, *words: str, name: str = "kprune.toml") -> dict[str, object]:
        (tmp_path / name).write_text(content)
        parent = click.Context(main, info_name="kprune")
        command = main.commands[words[0]]
        return command.make_context(words[0], [*words[1:]], parent=parent).params

    return parsed


FILE = """
[prune]
reduction = 0.4
text = ["a.txt", "b.txt"]
tokens = 500
rep-weight = 0.25
label_column = "y"
refit = false
evaluate = true
heal = "5x"

[bench]
threads = 2
"""


def test_the_file_stands_where_the_command_line_says_nothing(parse):
    found = parse(FILE, "prune", "model", "out")
    assert (found["reduction"], found["tokens"], found["rep_weight"], found["label"]) == (0.4, 500, 0.25, "y")
    assert ([str(path) for path in found["text"]], found["heal"]) == (["a.txt", "b.txt"], "5x")
    assert (found["refit"], found["is_tested"], found["align"]) == (False, True, 16)
    assert parse(FILE, "bench", "model")["threads"] == 2


def test_the_command_line_wins(parse):
    found = parse(FILE, "prune", "model", "out", "--reduction", "0.9", "--text", "c.txt", "--refit", "--tokens", "7")
    assert (found["reduction"], [str(path) for path in found["text"]]) == (0.9, ["c.txt"])
    assert (found["refit"], found["tokens"], found["rep_weight"]) == (True, 7, 0.25)


def test_what_contradicts_the_command_line_gives_way(parse):
    found = parse(FILE, "prune", "model", "out", "--max-drop", "1", "--data", "my.csv")
    assert (found["reduction"], found["max_drop"], found["text"], found["table"]) == (None, 1.0, (), ("my.csv",))
    assert (found["label"], found["tokens"]) == ("y", 500)  # the rest stays
    file = '[prune]\ntask = "sst2"\ndata = "glue"\nreduction = 0.5'
    found = parse(file, "prune", "model", "out", "--task", "mrpc")
    assert (found["task"], found["table"]) == ("mrpc", ("glue",))
    found = parse(file, "prune", "model", "out", "--text", "a.txt")
    assert (found["task"], found["table"], len(found["text"])) == (None, (), 1)


def test_another_file_is_named_by_an_option(parse):
    parse("[prune]\ntokens = 1", "prune", "m", "o")
    assert parse("[prune]\ntokens = 2", "prune", "m", "o", "--config", "my.toml", name="my.toml")["tokens"] == 2
    assert parse("[prune]\ntokens = 1", "prune", "m", "o")["tokens"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "[prune]\nreductoin = 0.5",
            "kprune.toml, [prune], has the unknown key 'reductoin'; the nearest is 'reduction'.",
        ),
        ("[prune]\nzzz = 1", "has the unknown key 'zzz'; known are "),
        ("[prune]\nconfig = 'a'", "has the unknown key 'config'"),
        ("[prnue]\ntokens = 5", "has the section [prnue], which is no command; the nearest is 'prune'."),
        ("tokens = 5", "kprune.toml has 'tokens' outside of a section; put it below [prune]."),
        ("[prune", "kprune.toml is not TOML"),
        ("[prune]\ntokens = true", "kprune.toml, [prune], tokens is True, but must be a value, not true or false."),
        ("[prune]\nrefit = 1", "refit is 1, but must be true or false."),
        ("[prune]\ntokens = [1, 2]", "tokens is [1, 2], but must be one value."),
        ("[prune.text]\na = 1", "text is {'a': 1}, but must be one value."),
        ("[prune]\ntokens = 'many'", "Invalid value for '--tokens': 'many' is not a valid integer."),
        ("[prune]\nmethod = 'knoww'", "Invalid value for '--method'"),
    ],
)
def test_mistakes_are_usage_errors_with_the_remedy(content, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kprune.toml").write_text(content)
    result = kprune("prune", "model", "out", "--reduction", 0.5)
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [tmp_path / "kprune.toml"])
    assert message in " ".join(result.stderr.split())


def test_a_missing_file_is_an_error_if_it_was_named():
    result = kprune("tasks", "--config", "missing.toml")
    assert (result.exit_code, "cannot read missing.toml: No such file" in result.stderr) == (2, True)


def test_help_and_completion_do_not_need_a_right_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kprune.toml").write_text("[prune")
    assert kprune("prune", "--help").exit_code == 0
    context = main.commands["prune"].make_context("prune", ["--crit"], resilient_parsing=True)
    assert context.params["criterion"] == "compensated"
