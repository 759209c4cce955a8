import json
from pathlib import Path

import pytest
from command_line import kprune, write_checkpoint
from comparison_worker import compare_until
from conftest import DRAWS
from processes import FAST_START
from task_data import load_tokenizer, write_data

from kprune.checkpoints.source import Source
from kprune.config import PruneConfig, RunConfig
from kprune.data.tasks import TASKS
from kprune.evaluation import metrics
from kprune.jobs import comparison
from kprune.jobs.comparison import compare, prepare_task, run_cells
from kprune.jobs.grid import Grid
from kprune.jobs.results import open_cells, read_results, read_runs
from kprune.pruning.pruner import Pruner
from kprune.report.comparison_figures import plot_comparison

TIMES = ("seconds", "forward_seconds", "prune_seconds", "peak_megabytes", "heal_seconds", "shares_passes")


@pytest.fixture(scope="module", autouse=True)
def _all_draws():
    """As many draws as other processes make."""
    fewer, metrics.DRAWS = metrics.DRAWS, DRAWS
    yield
    metrics.DRAWS = fewer


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Data of three tasks and a tiny model for each."""
    root = tmp_path_factory.mktemp("compare")
    kinds = {"sst2": "classification", "squad": "question answering", "wikitext2": "masked language model"}
    for name, kind in kinds.items():
        write_data(root / "data", TASKS[name], rows=60)
        labels = {"num_labels": 2} if kind == "classification" else {}
        write_checkpoint(root / name, kind, max_position_embeddings=512, **labels)
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


def without_times(line):
    """What must be the same whenever a cell is run."""
    return {name: value for name, value in line.items() if name not in TIMES}


def sorted_runs(lines):
    """Runs in an order that does not depend on when a failed cell was tried again."""
    return sorted(map(without_times, lines), key=lambda line: (line["method"], line["reduction"]))


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
    assert [line["settings"]["method"] for line in clean if "error" not in line] == [
        "kprune", "kprune", "kcm", "magnitude", "magnitude", "kprune", "kprune",
    ]  # fmt: skip
    assert [line["settings"]["refit"] for line in clean[-2:]] == [False, False]


def test_a_reduction_out_of_range_fails_alone(place):
    out_of_range = grid(place, methods=("magnitude",), reductions=(1.5, 0.5))
    lines = list(run_cells(out_of_range, out_of_range.cells()))
    assert ["error" in line for line in lines] == [True, False]
    assert "reduction is 1.5, but must be 0 or more and below 1" in lines[0]["error"]


def test_lines_name_no_path_of_the_machine(place, clean, tmp_path):
    assert str(place) not in json.dumps(clean)
    (tmp_path / "empty").mkdir()
    for models in ({"sst2": str(tmp_path / "empty")}, {"squad": str(place / "squad")}):
        broken = grid(place, models=models, data=str(tmp_path), methods=("magnitude",), reductions=(0.5,))
        (line,) = run_cells(broken, broken.cells())
        assert "error" in line
        assert str(tmp_path) not in json.dumps(line)
        assert tmp_path.name in line["error"] or "empty" in line["error"]


def test_a_rerun_does_nothing_and_a_larger_grid_only_what_is_new(place, clean, tmp_path):
    path = tmp_path / "again.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in clean))
    finished = []
    compare(grid(place), path, finished=finished.append)
    assert [(line["method"], line["reduction"]) for line in finished] == [("kcm", 0.8)]  # which failed
    finished.clear()
    compare(grid(place, methods=(*grid(place).methods, "random")), path, finished=finished.append)
    assert [(line["method"], line["reduction"]) for line in finished] == [
        ("kcm", 0.8),
        ("random", 0.3),
        ("random", 0.8),
    ]


def test_a_line_that_a_crash_cut_short_is_run_again(place, clean, tmp_path):
    path = tmp_path / "cut.jsonl"
    whole = "".join(json.dumps(line) + "\n" for line in clean)
    path.write_text(whole[:-40])
    assert [cell.method for cell in open_cells(grid(place), path)] == ["kcm", "kprune refit=no"]  # kcm had failed
    compare(grid(place), path)
    assert sorted_runs(read_runs(path)) == sorted_runs(clean)


def test_two_jobs_find_what_one_does(place, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in this process
    both = grid(
        place,
        models={"sst2": str(place / "sst2"), "squad": str(place / "squad")},
        methods=("magnitude",),
        reductions=(0.5,),
    )
    compare(both, tmp_path / "one.jsonl")
    compare(both, tmp_path / "two.jsonl", jobs=2)
    one, two = (
        sorted((without_times(line) for line in read_results(tmp_path / name)), key=lambda line: line["task"])
        for name in ("one.jsonl", "two.jsonl")
    )
    assert len(one) == 2
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
    arguments = [str(path), "--grid", str(toml)]
    lines = 0
    for stop, moment in ((1, "before"), (2, "middle"), (3, "after")):  # of the cells that are left
        ours, theirs = FAST_START.Pipe(duplex=False)
        run = FAST_START.Process(target=compare_until, args=(stop, moment, arguments, theirs))
        run.start()
        theirs.close()  # so that a run that fails is noticed
        assert ours.recv() == "stopped"
        run.kill()
        run.join()
        lines += stop if moment == "after" else stop - 1
        assert len(read_results(path)) == lines
    result = kprune("compare", *arguments)
    assert result.exit_code == 0, result.output
    assert sorted_runs(read_runs(path)) == sorted_runs(clean)


def test_plots_and_tables_come_from_the_file(clean, tmp_path):
    path = tmp_path / "results.jsonl"
    lines = [dict(line) for line in clean]
    for seed in (1, 2):
        lines += [{**line, "seed": seed} for line in clean]
    for weight in (0.0, 0.001):
        lines += [{**clean[0], "method": f"kprune rep_weight={weight}"}]
    for criterion in ("fisher", "released"):
        lines += [{**clean[0], "method": f"kprune criterion={criterion}"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    written = plot_comparison(path, tmp_path / "pictures", "svg")
    pictures = ["reduction", "time", "criteria", "kept", "sensitivity-rep_weight"]
    assert [file.name for file in written] == [*(f"{name}.svg" for name in pictures), "tables.md"]
    assert all(file.stat().st_size > 500 for file in written)
    tables = written[-1].read_text()
    value = clean[0]["figures"][0]["value"]
    dense = clean[0]["against"][0]["value"]
    assert f"| sst2 | 30% | kprune | accuracy {value:.2f} ± 0.00 (dense {dense:.2f}) | 3 |" in tables
    assert "K-prune without one of its ideas." in tables


def test_masked_language_models_are_calibrated_on_masked_tokens(place):
    chosen = grid(place, models={"wikitext2": str(place / "wikitext2")}, tokens=300)
    prepared = prepare_task(chosen, "wikitext2", seed=0)
    mask = load_tokenizer().mask_token_id
    for batch in prepared.batches:
        is_masked = batch["input_ids"] == mask
        assert is_masked.any()
        assert ((batch["labels"] != -100) == is_masked).all()
    lines = list(run_cells(chosen, chosen.cells()[:1]))
    assert "error" not in lines[0], lines[0]


def test_other_models_are_calibrated_on_plain_tokens(place):
    prepared = prepare_task(grid(place), "sst2", seed=0)
    mask = load_tokenizer().mask_token_id
    assert not any((batch["input_ids"] == mask).any() for batch in prepared.batches)
    assert all(len(batch["labels"]) == len(batch["input_ids"]) for batch in prepared.batches)


def test_reductions_that_share_passes_find_what_each_finds_alone(place, clean):
    chosen = grid(place, methods=("kprune", "kwon"))
    shared = list(run_cells(chosen, chosen.cells()))
    alone = [line for cell in chosen.cells() for line in run_cells(chosen, [cell])]
    assert [line["shares_passes"] for line in shared] == [False, True, False, True]
    assert not any(line["shares_passes"] for line in alone)
    assert [without_times(line) for line in shared] == [without_times(line) for line in alone]


def test_variants_that_only_heal_differently_prune_once(place, monkeypatch):
    chosen = grid(place, methods=("kprune", "kprune heal=1x", "kprune heal=2x"), reductions=(0.5, 0.8))
    alone = [line for cell in chosen.cells() for line in run_cells(chosen, [cell])]
    runs, prune = [], Pruner.prune
    monkeypatch.setattr(Pruner, "prune", lambda *given, **more: runs.append(given) or prune(*given, **more))
    shared = list(run_cells(chosen, chosen.cells()))
    assert len(runs) == 2
    lines = {(line["method"], line["reduction"]): without_times(line) for line in shared}
    assert lines == {(line["method"], line["reduction"]): without_times(line) for line in alone}
    assert [line["shares_passes"] for line in shared] == 3 * [False] + 3 * [True]
    assert [line["heal_seconds"] > 0 for line in shared] == 2 * [False, True, True]


def test_an_unexpected_error_fails_its_cell_alone(place, clean, monkeypatch):
    prune = Pruner.prune

    def fail(pruner, reduction, **more):
        if pruner.config.method == "magnitude":
            raise OSError(28, "No space left", "/a/b/file")
        return prune(pruner, reduction, **more)

    monkeypatch.setattr(Pruner, "prune", fail)
    chosen = grid(place, methods=("magnitude", "kprune"), reductions=(0.3,))
    broken, sound = run_cells(chosen, chosen.cells())
    assert broken["error"] == "OSError: [Errno 28] No space left: 'file'"
    assert without_times(json.loads(json.dumps(sound))) == without_times(clean[0])


def test_seeds_share_the_dense_models_predictions_on_the_test(place, tmp_path, monkeypatch):
    found = []
    run = comparison.run_cells
    monkeypatch.setattr(comparison, "run_cells", lambda *given: found.append(given[2]) or run(*given))
    chosen = grid(place, methods=("magnitude",), reductions=(0.3,), seeds=(0, 1))
    compare(chosen, tmp_path / "shared.jsonl")
    assert found[0] is found[1]
    assert found[0]
    alone = json.loads(json.dumps([line for cell in chosen.cells() for line in run(chosen, [cell])]))
    assert [*map(without_times, read_results(tmp_path / "shared.jsonl"))] == [*map(without_times, alone)]


def test_gates_are_on_in_the_test_and_their_mean_flops_are_noted(place):
    chosen = grid(place, methods=("ebert minutes=0", "ebert epochs=0.1"), reductions=(0.5,))
    lines = list(run_cells(chosen, chosen.cells()))
    assert ["error" in line for line in lines] == [False, False]
    for line in lines:
        dense, spent = line["test_flops"]
        assert dense == line["flops"][0]
        assert 0.4 < 1 - spent / dense < 0.6
        assert spent != line["flops"][1]  # which is the mean over the sample


def test_cells_of_a_sample_share_one_model(place, monkeypatch):
    loads = []
    load = Source.load
    monkeypatch.setattr(Source, "load", lambda source: (loads.append(source.name), load(source))[1])
    chosen = grid(place, methods=("magnitude", "random"))
    assert len(list(run_cells(chosen, chosen.cells()))) == 4
    assert loads == ["sst2"]
    prepared = prepare_task(chosen, "sst2", seed=0)
    first, second = (prepared.pruner(PruneConfig(reduction=reduction), RunConfig()) for reduction in (0.3, 0.8))
    assert first is second
