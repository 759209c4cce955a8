import json

import pytest
from comparison_worker import append_lines
from processes import FAST_START

from kprune.errors import KpruneError
from kprune.jobs.grid import Grid
from kprune.jobs.results import append_result, open_cells, read_results, read_runs
from kprune.report.comparison_figures import plot_comparison


def test_lines_from_several_processes_do_not_mix(tmp_path):
    path = tmp_path / "many.jsonl"
    workers = [FAST_START.Process(target=append_lines, args=(path, name, 200)) for name in "01"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    found = sorted((line["name"], line["number"]) for line in read_results(path))
    assert found == [(name, number) for name in "01" for number in range(200)]


def test_a_torn_line_is_cut_before_the_next(tmp_path):
    path = tmp_path / "torn.jsonl"
    append_result(path, {"a": 1})
    with path.open("a") as file:
        file.write('{"b": 2')
    assert read_results(path) == [{"a": 1}]
    append_result(path, {"c": 3})
    assert path.read_text() == '{"a": 1}\n{"c": 3}\n'


def test_a_file_that_is_not_there_has_no_results(tmp_path):
    assert read_results(tmp_path / "absent.jsonl") == []


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "damaged.jsonl"
    path.write_text('{"a": 1}\nnot json\n{"b": 2}\n')
    with pytest.raises(KpruneError, match="line 2, is not JSON; correct it or delete it"):
        read_results(path)


@pytest.mark.parametrize("content", ["{}\n", "[1]\n"])
def test_results_of_something_else_are_refused(content, tmp_path):
    (tmp_path / "results.jsonl").write_text(content)
    with pytest.raises(KpruneError, match="line 1, is not a run of kprune compare; delete it"):
        read_runs(tmp_path / "results.jsonl")
    with pytest.raises(KpruneError, match="line 1, is not a run of kprune compare"):
        plot_comparison(tmp_path / "results.jsonl", tmp_path / "pictures")


def test_a_folder_is_not_a_results_file(tmp_path):
    with pytest.raises(KpruneError, match=r"is not a file; name a file for the results, such as results\.jsonl"):
        read_runs(tmp_path)


def test_cells_without_a_line_are_open(tmp_path):
    grid = Grid({"sst2": "m"}, methods=("kprune", "kwon"), reductions=(0.5,), seeds=(0, 1))
    path = tmp_path / "results.jsonl"
    assert open_cells(grid, path) == grid.cells()
    path.write_text(json.dumps({**vars(grid.cells()[2]), "error": "no memory"}) + "\n")
    assert open_cells(grid, path) == [grid.cells()[number] for number in (0, 1, 3)]
    more_tokens = Grid({"sst2": "m"}, methods=("kprune", "kwon"), reductions=(0.5,), seeds=(0, 1), tokens=9)
    assert open_cells(more_tokens, path) == more_tokens.cells()
