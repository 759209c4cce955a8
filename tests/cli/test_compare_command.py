import json
from pathlib import Path

import pytest
from command_line import kprune

from kprune.checkpoints.source import Source
from kprune.jobs import comparison


def test_options_that_name_no_model_are_refused(tmp_path):
    result = kprune("compare", tmp_path / "r.jsonl")
    assert result.exit_code == 2
    assert "pass at least one --model TASK=MODEL" in result.stderr
    result = kprune("compare", tmp_path / "r.jsonl", "--model", "sst2")
    assert (result.exit_code, "pass at least one --model TASK=MODEL" in result.stderr) == (2, True)
    result = kprune("compare", tmp_path / "r.jsonl", "--model", "imdb=x")
    assert (result.exit_code, "no task 'imdb'" in result.stderr) == (1, True)


def test_cells_that_fail_are_printed_with_the_reason(tmp_path):
    result = kprune("compare", tmp_path / "r.jsonl", "--model", "sst2=/nowhere", "--reduction", "0.5", "--seed", "0")
    assert result.exit_code == 1
    assert result.stderr.endswith(
        "kprune: every cell failed; the lines above have the reasons. The next run tries them again.\n"
    )
    assert "5 cells, 5 run now, 5 failed in all" in " ".join(result.output.split())  # one for each method
    assert " ".join(result.output.split()).count("there is no folder nowhere") == 5
    assert "/nowhere" not in (tmp_path / "r.jsonl").read_text()


@pytest.mark.parametrize(
    ("variant", "sentence"),
    [
        ("kprune criterion=compensatd", "unknown criterion 'compensatd'; use one of "),
        ("kprune search=globl", "unknown search 'globl'; use one of global, uniform."),
        ("kprune budget=time", "unknown budget 'time'; use one of flops, "),
        ("kprun", "unknown method 'kprun'; use one of kprune, kwon"),
        ("kprune temperature=0", "temperature is 0.0, but must be above 0"),
    ],
)
def test_a_misspelt_variant_is_reported_before_any_model_is_loaded(variant, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr(Source, "load", lambda source: pytest.fail("a model was loaded"))
    monkeypatch.setattr(comparison, "prepare_task", lambda *_: pytest.fail("data were read"))
    methods = ("--method", "kprune", "--method", variant)
    result = kprune("compare", tmp_path / "r.jsonl", "--model", "sst2=/nowhere", *methods)
    assert result.exit_code == 1
    assert result.stderr.strip().startswith(f"kprune: {sentence}")
    assert "\n" not in result.stderr.strip()
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_options_complete_the_file_of_a_grid(tmp_path, monkeypatch):
    received = []
    monkeypatch.setattr("kprune.jobs.comparison.compare", lambda grid, path, **_: received.append(grid))
    (tmp_path / "grid.toml").write_text("methods = ['kprune']\nseeds = [7]\ntokens = 50\n[models]\nsst2 = 'folder'\n")
    result = kprune("compare", tmp_path / "r.jsonl", "--grid", tmp_path / "grid.toml", "--seed", 3, "--reduction", 0.5)
    assert result.exit_code == 0, result.output
    grid = received[0]
    assert (grid.methods, grid.seeds, grid.reductions, grid.tokens) == (("kprune",), (3,), (0.5,), 50)
    assert grid.models == {"sst2": "folder"}


def test_plot_writes_pictures_and_tables(tmp_path):
    figure = {"name": "accuracy", "value": 88.0}
    line = {
        "task": "sst2", "model": "m", "method": "kprune", "reduction": 0.5, "seed": 0, "tokens": 100, "limit": None,
        "figures": [figure], "against": [figure], "fidelity": [figure], "prune_seconds": 1.0, "units": [4, 8],
        "kept": [2, 4],
    }  # fmt: skip
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(line) + "\n" + json.dumps({**line, "reduction": 0.8}) + "\n")
    written = json.loads(kprune("plot", path, tmp_path / "png", "--json").stdout)
    assert [Path(name).name for name in written] == ["reduction.png", "time.png", "kept.png", "tables.md"]
    assert all(Path(name).is_file() for name in written)
    path.write_text("")
    result = kprune("plot", path, tmp_path / "none")
    assert (result.exit_code, "no finished run to draw" in result.stderr) == (1, True)
