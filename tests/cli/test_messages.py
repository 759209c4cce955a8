"""--quiet and --verbose change what is said, not what is done; standard input is a source like a file."""

import logging

import pytest
from click.testing import CliRunner
from command_line import kprune, write_text

from kprune.cli.main import main

pytest_plugins = ["command_fixtures"]
SAMPLE = ("--reduction", 0.5, "--tokens", 2000, "--align", 1, "--ridge", 1e-3)


@pytest.fixture(scope="module")
def runs(checkpoint, tmp_path_factory):
    """The same pruning with each option; the text is too short, which gets a warning."""
    folder = tmp_path_factory.mktemp("runs")
    text = write_text(folder / "short.txt", 12)
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.root, "handlers", [])  # pytest's own would take the messages
        for option in ("", "--quiet", "--verbose"):
            out = folder / f"out{option}"
            found[option] = kprune("prune", checkpoint, out, "--text", text, *SAMPLE, *[option] if option else []), out
    return found


def test_the_result_does_not_depend_on_messages(runs):
    weights = [(out / "model.safetensors").read_bytes() for _, out in runs.values()]
    assert all(result.exit_code == 0 for result, _ in runs.values()), runs[""][0].output
    assert weights[0] == weights[1] == weights[2]


def test_quiet_leaves_results_and_verbose_adds_steps(runs):
    normal, quiet, verbose = (result for result, _ in runs.values())
    assert quiet.stderr == ""
    assert "FLOPs" in quiet.stdout
    assert "fewer than the requested" in normal.stderr
    assert "short.txt has 12 rows" in verbose.stderr
    assert "short.txt has 12 rows" not in normal.stderr
    steps = [line for line in verbose.stderr.splitlines() if " kept, error " in line]
    assert steps[0].startswith("layer ")
    assert len(steps) == len(set(steps)) == 6  # attention and FFN of three layers


def test_quiet_does_not_hide_an_error(checkpoint, tmp_path):
    result = kprune("prune", checkpoint, tmp_path / "out", "--text", tmp_path / "missing.txt", *SAMPLE, "--quiet")
    assert (result.exit_code, "missing.txt: No such file" in result.stderr) == (1, True)


def test_lines_of_standard_input_are_a_sample(checkpoint, text, tmp_path):
    words = ["prune", str(checkpoint), str(tmp_path / "piped"), "--text", "-", *map(str, SAMPLE)]
    piped = CliRunner().invoke(main, words, input=text.read_bytes())
    assert piped.exit_code == 0, piped.output
    assert kprune("prune", checkpoint, tmp_path / "named", "--text", text, *SAMPLE).exit_code == 0
    names = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("piped", "named")]
    assert names[0] == names[1]
