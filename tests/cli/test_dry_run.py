"""`kprune prune --dry-run` says what a run would do, and the run then does that."""

import json

import pytest
from command_line import kprune

pytest_plugins = ["command_fixtures"]
SAMPLE = ("--tokens", 900, "--align", 1, "--ridge", 1e-3)


@pytest.fixture(scope="module")
def planned(checkpoint, text):
    result = kprune("prune", checkpoint, "out", "--text", text, "--reduction", 0.6, *SAMPLE, "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_run_removes_what_was_planned(planned, checkpoint, text, tmp_path):
    out = tmp_path / "out"
    done = json.loads(kprune("prune", checkpoint, out, "--text", text, "--reduction", 0.6, *SAMPLE, "--json").stdout)
    assert (planned["tokens"], planned["examples"]) == (done["tokens"], done["examples"])
    assert (planned["flops"], planned["parameters"]) == (done["flops"][0], done["parameters"][0])
    # Whole units leave: the run misses the budget by less than a head, 1 / 8 of a layer's attention here.
    assert planned["flops_removed"] == pytest.approx([done["flops"][0] - done["flops"][1]] * 2, rel=0.1)
    low, high = planned["parameters_removed"]
    removed = done["parameters"][0] - done["parameters"][1]
    assert 0.9 * low <= removed <= 1.1 * high


def test_nothing_is_written(checkpoint, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = kprune("prune", checkpoint, "out", "--text", text, "--reduction", 0.5, *SAMPLE, "--heal", "--dry-run")
    assert (result.exit_code, list(tmp_path.iterdir())) == (0, [])
    for word in ("tiny: 3 layers to prune", "FLOPs", "time", "memory", "The time of the healing comes on top."):
        assert word in result.stdout
    assert result.stdout.endswith("Nothing was written.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--max-drop", 1), "--dry-run plans one reduction, not a search; pass --reduction."),
        (("--speedup", 2), "--dry-run plans one reduction, not a search; pass --reduction."),
        (("--reduction", 0.5, "--method", "random"), "a dry run rehearses the method 'kprune', not 'random'"),
    ],
)
def test_what_cannot_be_planned_is_a_usage_error(arguments, message, checkpoint, text):
    result = kprune("prune", checkpoint, "out", "--text", text, *arguments, *SAMPLE, "--dry-run")
    assert (result.exit_code, message in " ".join(result.stderr.split())) == (2, True)
