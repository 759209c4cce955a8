import json

import zoo
from command_line import kprune

from kprune.data.tasks import TASKS
from kprune.jobs.demo import embedded_model
from kprune.models.families import FAMILIES

pytest_plugins = ["command_fixtures"]


def test_inspect_a_dense_model():
    result = kprune("inspect", embedded_model().folder, "--json")
    printed = json.loads(result.stdout)
    assert printed["shape"] == {"heads": [12] * 6, "neurons": [1536] * 6, "dense_heads": 12, "dense_neurons": 1536}
    flops = 6 * (12 * (8 * 128 * 384 * 32 + 4 * 128**2 * 32) + 1536 * 4 * 128 * 384)
    assert printed["flops"][0] == printed["flops"][1] == flops
    assert printed["parameters"][1] == embedded_model().load().num_parameters()


def test_inspect_shows_a_pruned_model(small):
    result = kprune("inspect", small, "--length", 64)
    assert result.exit_code == 0, result.output
    for part in ("layer", "heads (of 4)", "neurons (of 48)", "at 64 tokens", "% removed", "on disk"):
        assert part in result.output


def test_families_are_listed_with_what_was_tested():
    listed = json.loads(kprune("families", "--json").stdout)
    assert set(listed) == set(FAMILIES)
    assert listed["phi3"] == {
        "norm": "pre-norm",
        "projections": "fused, grouped",
        "inputs": "text",
        "tested_kinds": ["causal language model", "classification", "embedding"],
        "real_checkpoint": None,
    }
    assert (listed["gemma2"]["norm"], listed["gpt_neox"]["norm"]) == ("sandwich", "parallel")
    assert (listed["wav2vec2"]["norm"], listed["wav2vec2"]["inputs"]) == ("post-norm", "sound")
    printed = kprune("families").stdout
    assert all(name in printed for name in FAMILIES)


def test_the_tested_kinds_are_those_of_the_tests():
    listed = json.loads(kprune("families", "--json").stdout)
    tested = {name: list(entry.kinds) for name, entry in zoo.ZOO.items() if "/" not in name}
    assert {name: family["tested_kinds"] for name, family in listed.items()} == tested


def test_tasks_are_listed():
    assert set(json.loads(kprune("tasks", "--json").stdout)) == set(TASKS)
    listed = kprune("tasks").output
    assert all(name in listed for name in TASKS)
