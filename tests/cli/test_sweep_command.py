import json
import shlex

import pytest
from click.testing import CliRunner
from command_line import kprune
from fast_clock import install_fast_clock

from kprune.cli.main import main

pytest_plugins = ["command_fixtures"]


@pytest.fixture(autouse=True)
def _fast_clock(monkeypatch):
    install_fast_clock(monkeypatch)


def test_the_proposed_command_prunes_to_the_chosen_point(checkpoint, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = ("--data", table, "--text-column", "text", "--label-column", "verdict", "--tokens", 600, "--limit", 30)
    options = ("--align", 1, "--shape", "2x8", "--seconds", 0, "--reduction", 0.3, "--reduction", 0.6)
    printed = json.loads(kprune("sweep", checkpoint, *data, *options, "--json").stdout)
    assert [line["reduction"] for line in printed["lines"][1:]] == [0.3, 0.6]
    assert (tmp_path / "sweep.jsonl").is_file()
    words = shlex.split(printed["command"])
    assert words[:4] == ["kprune", "prune", str(checkpoint), "small"]
    assert "--shape" not in words
    result = CliRunner().invoke(main, [*words[1:], "--json"])
    assert result.exit_code == 0, result.output
    pruned = json.loads(result.stdout)
    line = next(line for line in printed["lines"][1:] if line["reduction"] == pruned["reduction"])
    assert printed["chosen"]["reduction"] == pruned["reduction"]
    assert [len(step["kept"]) for step in pruned["steps"]] == line["kept"]
    assert pruned["evaluation"]["figures"] == line["figures"]
    page = tmp_path / "sweep.html"
    again = kprune("sweep", checkpoint, *data, *options, "--max-drop", 99, "--report", page)
    assert again.exit_code == 0, again.output
    assert "The points are in sweep.jsonl." in again.output
    assert f"The page is {page}; open it in a browser." in again.stderr
    assert "the largest reduction within 99 points" in again.output
    assert "kprune prune" in again.output


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--max-drop", 0), "--max-drop is 0, but must be above 0"),
        (("--reduction", 1.5), "reduction is 1.5, but must be"),
        (("--shape", "wide"), "the shape 'wide' is not BATCHxLENGTH"),
    ],
)
def test_wrong_options_are_refused(checkpoint, text, tmp_path, options, sentence):
    result = kprune("sweep", checkpoint, tmp_path / "s.jsonl", "--text", text, *options)
    assert result.exit_code in (1, 2)
    assert sentence in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == []
