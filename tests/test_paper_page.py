"""The page of benchmarks/paper.py, from few lines: what is there, what is refused, what is missing."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_line import write_checkpoint
from task_data import write_data

from kprune.data.tasks import TASKS
from kprune.jobs.results import read_results

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import paper
import paper_page
import paper_runs


@dataclass(frozen=True)
class Piece:
    tasks: tuple = ("sst2", "mrpc")
    methods: tuple = ("kprune", "kcm")
    reductions: tuple = (0.4, 0.8)
    seeds: tuple = (0, 1)
    tokens: int = 100


def line(task="sst2", method="kprune", reduction=0.4, seed=0, value=80.0, **other):
    figure = {"name": "accuracy", "value": value, "low": value - 1, "high": value + 1}
    found = {"figures": [figure], "against": [{**figure, "value": 86.0}], "examples": 872, "prune_seconds": 1.0}
    cell = {"task": task, "model": "m", "method": method, "reduction": reduction, "seed": seed, "tokens": 100}
    changes = {"differences": [{"value": value - 86.0}]}
    measured = {} if "error" in other else {**found, **changes}
    return {**cell, "limit": None, "flops": [10.0, 4.0], **measured, **other}


LINES = [
    *(line(reduction=reduction, seed=seed, value=85.0 - 5 * reduction) for reduction in (0.4, 0.8) for seed in (0, 1)),
    line(method="kcm", value=60.0),
    line(method="kcm", reduction=0.8, error="kcm removes neurons only and cannot reach a reduction of 0.8"),
    line(method="kcm", seed=1, error="out of memory"),  # not refused: it may be run again
    # Trials: another sample, and a part of the test.
    line(value=1.0, tokens=50),
    line(task="mrpc", value=2.0, limit=10),
]


@pytest.fixture
def written(tmp_path):
    parts = {part: [Piece()] for part in paper_page.SECTIONS}
    (tmp_path / "figure1.jsonl").write_text("".join(json.dumps(each) + "\n" for each in LINES))
    for task, more in (("mrpc", {}), ("qnli", {"examples": 3199})):
        log = {"steps": 300, "batch": 32, "epochs": 3.0, **more}
        (tmp_path / f"finetune-{task}.jsonl").write_text(json.dumps(log) + "\n")
    paper_page.write_page(tmp_path / "page/paper.md", tmp_path, parts)
    return tmp_path / "page"


def test_a_page_of_few_lines_says_what_is_there_and_what_is_missing(written):
    text = (written / "paper.md").read_text()
    assert "| Figure 1: accuracy of pruned models | 7 of 16 |" in text  # 5 runs, and 2 seeds of a refused cell
    assert "| sst2 | 86.00 | 40% | 83.00 ± 0.00 | 60.00 |" in text
    assert "| sst2 | 86.00 | 80% | 81.00 ± 0.00 | refused |" in text
    assert "Missing runs, 9 of 16: kcm (sst2 1, mrpc 4); kprune (mrpc 4)." in text
    assert text.count("Not run yet (16 runs).") == len(paper_page.SECTIONS) - 1
    assert "| mrpc | 300 steps of 32, 3 epochs | – | – | 87.01 | 84.80 |" in text
    assert "| qnli | 3,199 inputs, 3 epochs; train sample of 9,999 rows |" in text
    assert "| kprune | paper's GPU | 2.66× |" in text
    assert (written / "paper-figure1.png").stat().st_size > 5000


def test_only_the_runs_of_a_tasks_last_model_count(tmp_path):
    lines = [line(seed=0, source="m@1", value=10.0), line(seed=1, source="m@2"), line(task="mrpc", source="n@1")]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    found = paper_runs.found_in(tmp_path / "runs.jsonl", [Piece()])
    assert [run["source"] for run in found.runs] == ["m@2", "n@1"]


def test_a_lead_needs_a_rival_at_the_same_reduction(written):
    assert paper_page.lead_table(LINES[:4]) == []
    (row,) = paper_page.lead_table([*LINES[:4], line(method="kwon", reduction=0.8, value=70.0)])[2:]
    assert row == "| sst2 | 80% | kwon | +11.00 | yes |"


def test_a_line_of_a_model_with_gates_counts_the_tests_flops():
    runs = [line(), line(test_flops=[10.0, 5.0])]
    assert paper_page.removed(runs) == "55.0%"


def call(*arguments) -> str:
    """What the command prints; it may fail."""
    return CliRunner().invoke(paper.main, [str(each) for each in arguments]).output


EIGHTY = ("--part", "figure1", "--reduction", 0.8, "--seed", 0)


def test_the_runs_that_are_left_are_listed(tmp_path):
    first = [*EIGHTY, "--results", tmp_path, "--model", "sst2=m", "--model", "stsb=m", "--list"]
    text = call(*first)
    assert text.startswith("sst2: kprune, 80%, seed 0, 100,000 tokens\nsst2: kprune criterion=released, 80%")
    assert text.endswith("12 runs are left\n")
    done = {"tokens": 100_000, "source": "m", "reduction": 0.8}
    lines = [line(**done), line(**done, method="kcm", error="kcm removes neurons only and cannot reach a reduction of")]
    (tmp_path / "figure1.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert call(*first).endswith("10 runs are left\n")
    for other in ({"source": "another"}, {"limit": 20}, {"tokens": 400}):  # what kcm refused there says nothing here
        (tmp_path / "figure1.jsonl").write_text(json.dumps({**lines[1], **other}) + "\n")
        assert call(*first).endswith("12 runs are left\n")
    (tmp_path / "figure1.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert call(*first, "--method", "kcm", "--task", "sst2") == "0 runs are left\n"
    assert call(*first, "--method", "kwon", "--task", "stsb").startswith("stsb: kwon, 80%, seed 0,")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "kwonn"], "the part figure1 has no method kwonn; it has kprune, kprune criterion=released, kwon"),
        (["--seed", 7], "the part figure1 has no seed 7; it has 0, 1, 2, 3, 4."),
        (["--reduction", 0.75], "the part figure1 has no reduction 0.75; it has 0.4, 0.6, 0.8."),
        (["--task", "mrpc"], "name the models to prune by --model mrpc=MODEL."),
        (["--part", "table2"], "the part table2 has no task sst2; it has mrpc, squad."),
    ],
    ids=str,
)
def test_what_a_part_does_not_have_is_refused(options, message, tmp_path):
    text = call("--part", "figure1", "--results", tmp_path, "--model", "sst2=m", "--list", *options)
    assert message in " ".join(text.split())


def test_all_methods_of_a_seed_share_one_grid():
    options = dict.fromkeys(("methods", "reductions", "seeds", "tokens", "data", "limit"))
    planned = list(paper.grids("figure1", {"sst2": "m"}, {**options, "methods": (), "reductions": (), "seeds": ()}))
    assert [grid.seeds for grid in planned] == [(seed,) for seed in range(5)]
    assert [len(grid.methods) for grid in planned] == [6, 6, 6, 2, 2]
    cells = {(cell.task, cell.method, cell.reduction, cell.seed, cell.tokens) for g in planned for cell in g.cells()}
    assert cells == {cell for cell in paper_runs.cells_of(paper.PARTS["figure1"]) if cell[0] == "sst2"}


def test_a_part_runs_in_pieces_and_resumes(tmp_path):
    write_data(tmp_path / "data", TASKS["sst2"], rows=60)
    model = write_checkpoint(tmp_path / "tiny", num_labels=2)
    trial = [*EIGHTY, "--results", tmp_path, "--model", f"sst2={model}", "--data", tmp_path / "data", "--tokens", 400]
    pieces = [["--method", "random"], ["--method", "magnitude"], ["--method", "random", "--method", "magnitude"]]
    for piece in pieces:
        call(*trial, "--limit", 20, *piece)
    runs = read_results(tmp_path / "figure1.jsonl")
    assert [(run["method"], run["reduction"], run["limit"]) for run in runs] == [
        ("random", 0.8, 20),
        ("magnitude", 0.8, 20),
    ]
    call("--page", tmp_path / "paper.md", "--results", tmp_path)
    assert "| Figure 1: accuracy of pruned models | 0 of 528 |" in (tmp_path / "paper.md").read_text()


def test_the_fastest_model_is_the_smallest_that_loses_less_than_three_points_on_average():
    values = {0.2: (85.0, 85.0), 0.4: (84.0, 82.9), 0.6: (84.0, 81.0), 0.8: (60.0, 60.0)}
    runs = [line(reduction=r, seed=seed, value=both[seed]) for r, both in values.items() for seed in (1, 0)]
    (best,) = paper.fastest_within_loss(runs)
    assert (best["reduction"], best["seed"]) == (0.4, 0)
