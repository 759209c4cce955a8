import json

import pytest

from kprune.errors import KpruneError
from kprune.report.comparison_figures import plot_comparison
from kprune.report.comparison_runs import finished_runs, mean_and_spread, seconds_alone, sweep_runs
from kprune.report.comparison_tables import markdown_tables


def run(method="kprune", reduction=0.5, value=88.0, seed=0, **other):
    figure = {"name": "accuracy", "value": value}
    return {
        "task": "sst2", "model": "m", "method": method, "reduction": reduction, "seed": seed, "tokens": 100,
        "limit": None, "figures": [figure], "against": [{"name": "accuracy", "value": 90.0}], "fidelity": [figure],
        "prune_seconds": 1.0, "units": [4, 8], "kept": [2, 4], **other,
    }  # fmt: skip


def write(path, runs):
    path.write_text("".join(json.dumps(line) + "\n" for line in runs))
    return path


def test_each_figure_with_runs_is_drawn(tmp_path):
    runs = [run(seed=seed, reduction=reduction) for seed in (0, 1) for reduction in (0.4, 0.8)]
    runs += [run(f"kprune temperature={value}") for value in (1.0, 2.0)]
    written = plot_comparison(write(tmp_path / "runs.jsonl", runs), tmp_path / "pictures", "svg")
    names = ["reduction.svg", "time.svg", "kept.svg", "sensitivity-temperature.svg", "tables.md"]
    assert [path.name for path in written] == names
    assert all(path.stat().st_size > 500 for path in written[:-1])


def test_the_same_runs_give_the_same_picture(tmp_path):
    path = write(tmp_path / "runs.jsonl", [run(), run("kwon", value=70.0)])
    first, second = (plot_comparison(path, tmp_path / name)[0].read_bytes() for name in ("a", "b"))
    assert first == second


def test_runs_that_cannot_be_averaged_are_refused(tmp_path):
    with pytest.raises(KpruneError, match="mixes runs of sst2 with tokens 100 and 200"):
        finished_runs(write(tmp_path / "mixed.jsonl", [run(), run(tokens=200)]))
    with pytest.raises(KpruneError, match="no finished run to draw"):
        finished_runs(write(tmp_path / "failed.jsonl", [run(error="no memory")]))


def test_mean_and_spread_are_over_seeds():
    runs = [run(value=80.0), run(value=82.0, seed=1), run("kwon", value=50.0)]
    found = mean_and_spread(runs, lambda line: line["method"], lambda line: line["figures"][0]["value"])
    assert found == {"kprune": (81.0, pytest.approx(2**0.5)), "kwon": (50.0, 0.0)}


def test_a_sweep_needs_two_values_of_one_option():
    one = run("kprune temperature=1.0")
    both = run("kprune temperature=2.0 ridge=1e-3")
    assert sweep_runs([run(), one, both], "temperature") == []
    assert sweep_runs([one, run("kprune temperature=2.0")], "temperature")[0] is one


def test_times_are_those_of_runs_that_share_nothing():
    shared = [run(seed=seed, prune_seconds=1.0, shares_passes=True) for seed in (0, 1)]
    alone = [run(reduction=0.4, prune_seconds=9.0, shares_passes=False), run(reduction=0.4, prune_seconds=11.0)]
    assert seconds_alone(alone) == seconds_alone(shared, alone) == seconds_alone([*shared, *alone]) == 10.0
    assert seconds_alone(shared) == 1.0


def test_the_best_ratio_loses_less_than_three_points():
    text = markdown_tables(
        [run(reduction=0.4, value=89.0), run(reduction=0.6, value=87.5), run(reduction=0.8, value=80)]
    )
    assert "| kprune | 2.50× |" in text
    assert markdown_tables([run(value=80.0)]).count("| kprune | – |") == 1


def test_ablations_share_a_table():
    text = markdown_tables([run(), run("kprune refit=no", value=60.0)])
    assert "| kprune refit=no | 60.00 |" in text
