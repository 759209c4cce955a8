"""The page of benchmarks/paper.py, from few lines: what is there, what is refused, what is missing."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import paper_page


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
    return {**cell, "limit": None, "flops": [10.0, 4.0], **(found if "error" not in other else {}), **other}


LINES = [
    *(line(reduction=reduction, seed=seed, value=85.0 - 5 * reduction) for reduction in (0.4, 0.8) for seed in (0, 1)),
    line(method="kcm", value=60.0),
    line(method="kcm", reduction=0.8, error="kcm removes neurons only"),
]


@pytest.fixture
def written(tmp_path):
    parts = {part: [Piece()] for part in paper_page.SECTIONS}
    (tmp_path / "figure1.jsonl").write_text("".join(json.dumps(each) + "\n" for each in LINES))
    log = {"steps": 300, "batch": 32, "epochs": 3.0}
    (tmp_path / "finetune-mrpc.jsonl").write_text(json.dumps(log) + "\n")
    paper_page.write_page(tmp_path / "page/paper.md", tmp_path, parts)
    return tmp_path / "page"


def test_a_page_of_few_lines_says_what_is_there_and_what_is_missing(written):
    text = (written / "paper.md").read_text()
    assert "| Figure 1: accuracy of pruned models | 7 of 16 |" in text  # 5 runs, and 2 seeds of a refused cell
    assert "| sst2 | 86.00 | 40% | 83.00 ± 0.00 | 60.00 |" in text
    assert "| sst2 | 86.00 | 80% | 81.00 ± 0.00 | refused |" in text
    assert "Missing runs, 9 of 16: kcm (sst2 1, mrpc 4); kprune (mrpc 4)." in text
    assert text.count("Not run yet (16 runs).") == len(paper_page.SECTIONS) - 1
    assert "| mrpc | 3,200 inputs, 3 epochs | – | – | 87.01 | 84.80 |" in text
    assert "| kprune | paper's GPU | 2.66× |" in text
    assert (written / "paper-figure1.png").stat().st_size > 5000


def test_a_lead_needs_a_rival_at_the_same_reduction(written):
    assert paper_page.lead_table(LINES[:4]) == []
    (row,) = paper_page.lead_table([*LINES[:4], line(method="kwon", reduction=0.8, value=70.0)])[2:]
    assert row == "| sst2 | 80% | kwon | +11.00 | yes |"


def test_a_line_of_a_model_with_gates_counts_the_tests_flops():
    runs = [line(), line(test_flops=[10.0, 5.0])]
    assert paper_page.removed(runs) == "55.0%"
