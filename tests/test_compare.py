import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny
from conftest import DRAWS
from test_cli import kprune
from test_tasks import write_data

from kprune import KpruneError, metrics
from kprune.compare import Grid, append_result, compare, open_cells, parse_method, read_grid, read_results, read_runs
from kprune.demo import embedded_model
from kprune.plots import plot
from kprune.tasks import TASKS


@pytest.fixture(scope="module", autouse=True)
def _all_draws():
    """As many draws as other processes make."""
    fewer, metrics.DRAWS = metrics.DRAWS, DRAWS
    yield
    metrics.DRAWS = fewer


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Data of two tasks and a tiny model for each."""
    root = tmp_path_factory.mktemp("compare")
    tokenizer = embedded_model().load_tokenizer()
    for name, kind in (("sst2", "classification"), ("squad", "question answering")):
        write_data(root / "data", TASKS[name], rows=60)
        labels = {"num_labels": 2} if kind == "classification" else {}
        sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 512, "pad_token_id": 0}
        tiny.tiny_model("bert", kind, **sizes, **labels).save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root


def grid(place: Path, **changes) -> Grid:
    usual = {
        "models": {"sst2": str(place / "sst2")},
        "methods": ("kprune", "kcm", "magnitude", "kprune refit=no"),
        "reductions": (0.3, 0.8),
        "seeds": (0,),
        "tokens": 400,
        "data": str(place / "data"),
        "limit": 20,
    }
    return Grid(**{**usual, **changes})


def told(line):
    """What must be the same whenever a cell is run."""
    timing = ("seconds", "forward_seconds", "prune_seconds", "peak_megabytes")
    return {name: value for name, value in line.items() if name not in timing}


@pytest.fixture(scope="module")
def clean(place) -> list[dict]:
    path = place / "clean.jsonl"
    compare(grid(place), path)
    return read_results(path)


def test_every_cell_has_a_line_and_failures_stop_nothing(place, clean):
    assert [(line["method"], line["reduction"]) for line in clean] == [
        (method, reduction) for method in grid(place).methods for reduction in (0.3, 0.8)
    ]
    failed = [line for line in clean if "error" in line]
    assert [(line["method"], line["reduction"]) for line in failed] == [("kcm", 0.8)]
    assert "kcm removes neurons only" in failed[0]["error"]
    good = clean[0]
    assert good["examples"] == 20
    assert good["figures"][0]["low"] <= good["figures"][0]["value"] <= good["figures"][0]["high"]
    assert len(good["kept"]) == 6
    assert good["flops"][1] <= 0.7 * good["flops"][0]
    assert good["peak_megabytes"] > 50
    assert good["prune_seconds"] > 0
    assert good["settings"]["reduction"] == 0.3


def test_a_rerun_does_nothing_and_a_larger_grid_only_what_is_new(place, clean, tmp_path):
    path = tmp_path / "again.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in clean))
    seen = []
    compare(grid(place), path, finished=seen.append)
    assert seen == []
    compare(grid(place, methods=(*grid(place).methods, "random")), path, finished=seen.append)
    assert [(line["method"], line["reduction"]) for line in seen] == [("random", 0.3), ("random", 0.8)]


def test_a_line_that_a_crash_cut_short_is_run_again(place, clean, tmp_path):
    path = tmp_path / "cut.jsonl"
    whole = "".join(json.dumps(line) + "\n" for line in clean)
    path.write_text(whole[:-40])
    assert len(open_cells(grid(place), path)) == 1
    compare(grid(place), path)
    assert [told(line) for line in read_results(path)] == [told(line) for line in clean]
    path.write_text("not json\n" + whole)
    with pytest.raises(KpruneError, match="line 1, is not JSON"):
        read_results(path)


def test_lines_from_several_processes_do_not_mix(tmp_path):
    path = tmp_path / "many.jsonl"
    script = (
        "import sys; from pathlib import Path; from kprune.compare import append_result\n"
        "for n in range(200): append_result(Path(sys.argv[1]), {'who': sys.argv[2], 'n': n, 'fill': 'x' * 5000})"
    )
    workers = [subprocess.Popen([sys.executable, "-c", script, str(path), str(who)]) for who in range(2)]
    assert [worker.wait() for worker in workers] == [0, 0]
    found = sorted((line["who"], line["n"]) for line in read_results(path))
    assert found == [(who, n) for who in "01" for n in range(200)]


def test_two_jobs_find_what_one_does(place, tmp_path):
    both = grid(
        place,
        models={"sst2": str(place / "sst2"), "squad": str(place / "squad")},
        methods=("magnitude",),
        reductions=(0.5,),
    )
    compare(both, tmp_path / "one.jsonl")
    compare(both, tmp_path / "two.jsonl", jobs=2)
    one, two = (
        sorted((told(line) for line in read_results(tmp_path / name)), key=lambda line: line["task"])
        for name in ("one.jsonl", "two.jsonl")
    )
    assert one == two


def test_a_grid_that_is_killed_goes_on_with_nothing_lost_or_repeated(place, clean, tmp_path):
    path = tmp_path / "killed.jsonl"
    toml = tmp_path / "grid.toml"
    made = grid(place)
    toml.write_text(
        f"methods = {json.dumps(made.methods)}\nreductions = {list(made.reductions)}\nseeds = [0]\n"
        f"tokens = 400\nlimit = 20\ndata = {json.dumps(made.data)}\n"
        f"[models]\nsst2 = {json.dumps(made.models['sst2'])}\n"
    )
    command = [sys.executable, "-m", "kprune", "compare", str(path), "--grid", str(toml)]
    generator = random.Random(0)
    for stop_after in (1, 3, 5):  # killed at some moment after so many cells
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while run.poll() is None and len(read_results(path)) < stop_after:
            time.sleep(0.02)
        time.sleep(0.3 * generator.random())
        run.send_signal(signal.SIGKILL)
        run.wait()
    subprocess.run(command, check=True, capture_output=True)
    assert [told(line) for line in read_results(path)] == [told(line) for line in clean]


def test_plots_and_tables_come_from_the_file(place, clean, tmp_path):
    path = tmp_path / "results.jsonl"
    lines = [dict(line) for line in clean]
    for seed in (1, 2):
        lines += [{**line, "seed": seed} for line in clean]
    for weight in (0.0, 0.001):
        lines += [{**clean[0], "method": f"kprune rep_weight={weight}"}]
    for criterion in ("fisher", "released"):
        lines += [{**clean[0], "method": f"kprune criterion={criterion}"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    written = plot(path, tmp_path / "pictures", "svg")
    pictures = ["reduction", "time", "criteria", "kept", "sensitivity-rep_weight"]
    assert [file.name for file in written] == [*(f"{name}.svg" for name in pictures), "tables.md"]
    assert all(file.stat().st_size > 500 for file in written)
    tables = written[-1].read_text()
    value = clean[0]["figures"][0]["value"]
    dense = clean[0]["against"][0]["value"]
    assert f"| sst2 | 30% | kprune | accuracy {value:.2f} ± 0.00 (dense {dense:.2f}) | 3 |" in tables
    assert "K-prune without one of its ideas." in tables
    result = kprune("plot", path, tmp_path / "png", "--json")
    assert [Path(name).suffix for name in json.loads(result.stdout)] == [".png"] * len(pictures) + [".md"]
    (tmp_path / "empty.jsonl").write_text("")
    assert "no finished run to draw" in kprune("plot", tmp_path / "empty.jsonl", tmp_path / "x").stderr


def test_best_speed_up_is_the_largest_within_three_points(tmp_path):
    from kprune.plots import tables

    def line(reduction, value):
        figure = {"name": "accuracy", "value": value}
        return {
            "task": "sst2", "method": "kprune", "reduction": reduction, "seed": 0, "figures": [figure],
            "against": [{"name": "accuracy", "value": 90.0}], "fidelity": [figure], "prune_seconds": 1.0,
        }  # fmt: skip

    found = tables([line(0.4, 89.0), line(0.6, 87.5), line(0.8, 80.0)])
    assert "| kprune | 2.50× |" in found  # 60 % removed loses 2.5 points, 80 % loses 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("movement", "there is no method 'movement'; use one of kprune, kwon"),
        ("kwon refit=no", "rivals nothing"),
        ("kprune speed=9", "sets 'speed'"),
        ("kprune temperature=hot", "sets temperature to 'hot'"),
        ("kprune refit=maybe", "sets refit to 'maybe'"),
    ],
)
def test_methods_that_are_not_there(text, message):
    with pytest.raises(KpruneError, match=message):
        parse_method(text)
    assert parse_method("kprune criterion=released temperature=4") == (
        "kprune",
        {"criterion": "released", "temperature": 4.0},
    )


def test_grids_are_read_with_care(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text("methods = ['kprune']\nlayers = 3\n")
    with pytest.raises(KpruneError, match="sets 'layers'; it may set data, limit"):
        read_grid(path)
    path.write_text("methods = [")
    with pytest.raises(KpruneError, match=r"cannot read .* as TOML"):
        read_grid(path)
    result = kprune("compare", tmp_path / "r.jsonl")
    assert result.exit_code == 2
    assert "pass at least one --model TASK=MODEL" in result.stderr
    result = kprune("compare", tmp_path / "r.jsonl", "--model", "imdb=x")
    assert (result.exit_code, "no task 'imdb'" in result.stderr) == (1, True)
    result = kprune("compare", tmp_path / "r.jsonl", "--model", "sst2=/nowhere", "--reduction", "0.5", "--seed", "0")
    assert "15 failed" not in result.output
    assert "5 failed" in result.output  # each method's cell, with the reason
    assert "there is no folder /nowhere" in result.output.replace("\n", " ")


def test_a_torn_line_is_cut_before_the_next(tmp_path):
    path = tmp_path / "torn.jsonl"
    append_result(path, {"a": 1})
    with path.open("a") as file:
        file.write('{"b": 2')
    append_result(path, {"c": 3})
    assert path.read_text() == '{"a": 1}\n{"c": 3}\n'


def test_results_that_are_none_are_refused(tmp_path):

    for content, sentence in (("{}\n", "line 1, is not a run of kprune compare"), ("[1]\n", "line 1, is not a run")):
        (tmp_path / "results.jsonl").write_text(content)
        with pytest.raises(KpruneError, match=sentence):
            read_runs(tmp_path / "results.jsonl")
        with pytest.raises(KpruneError, match=sentence):
            plot(tmp_path / "results.jsonl", tmp_path / "pictures")
    with pytest.raises(KpruneError, match="is not a file; results are lines in a file"):
        read_runs(tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("reductions = 0.5", "sets reductions to 0.5; it must be a list"),
        ('models = "m"', "sets models to 'm'; it must be a table"),
        ('methods = "kprune"', "sets methods to 'kprune'; it must be a list"),
        ('tokens = "many"', "sets tokens to 'many'; it must be a whole number"),
    ],
)
def test_a_grid_of_wrong_types_is_refused(content, sentence, tmp_path):
    (tmp_path / "grid.toml").write_text(content)
    with pytest.raises(KpruneError, match=re.escape(sentence)):
        read_grid(tmp_path / "grid.toml")


def test_a_method_without_a_name_is_refused():
    with pytest.raises(KpruneError, match="there is no method ''"):
        parse_method("")


def test_runs_that_differ_in_more_than_their_seed_are_not_averaged(tmp_path):

    line = {"task": "sst2", "model": "m", "method": "kprune", "reduction": 0.5, "seed": 0, "limit": None, "figures": []}
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps({**line, "tokens": tokens}) + "\n" for tokens in (1000, 25000)))
    with pytest.raises(KpruneError, match="mixes runs of sst2 with tokens 1000 and 25000"):
        plot(path, tmp_path / "pictures")
