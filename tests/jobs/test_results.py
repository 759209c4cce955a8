import json

import pytest
from comparison_worker import append_lines
from processes import FAST_START

from kprune.errors import KpruneError
from kprune.jobs.grid import Grid
from kprune.jobs.results import append_result, grid_lines, open_cells, read_results, read_runs
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
    path.write_text(json.dumps({**vars(grid.cells()[2]), "figures": []}) + "\n")
    assert open_cells(grid, path) == [grid.cells()[number] for number in (0, 1, 3)]
    more_tokens = Grid({"sst2": "m"}, methods=("kprune", "kwon"), reductions=(0.5,), seeds=(0, 1), tokens=9)
    assert open_cells(more_tokens, path) == more_tokens.cells()


def write_lines(path, cells, **content):
    with path.open("a") as file:
        for cell in cells:
            file.write(json.dumps({**vars(cell), **content}) + "\n")


def test_a_cell_that_failed_is_tried_again_and_its_error_superseded(tmp_path):
    grid = Grid({"sst2": "m"}, methods=("kprune",), reductions=(0.5, 0.8), seeds=(0,))
    path = tmp_path / "results.jsonl"
    write_lines(path, grid.cells(), error="no memory")
    assert open_cells(grid, path) == grid.cells()
    write_lines(path, grid.cells()[:1], error="no disk")
    assert [line["error"] for line in read_runs(path)] == ["no memory", "no disk"]  # 0.8, then 0.5 again
    write_lines(path, grid.cells()[:1], figures=[])
    assert ["error" in line for line in read_runs(path)] == [True, False]
    assert open_cells(grid, path) == grid.cells()[1:]
    assert [line["reduction"] for line in grid_lines(grid, path)] == [0.5, 0.8]


def test_two_models_with_the_same_last_name_are_two_models(tmp_path):
    one, two = (
        Grid({"sst2": f"{place}/model"}, methods=("kprune",), reductions=(0.5,), seeds=(0,)) for place in ("a", "b")
    )
    path = tmp_path / "results.jsonl"
    write_lines(path, open_cells(one, path), figures=[])
    (cell,) = open_cells(two, path)
    assert cell.model == "b/model"  # `model` is the other one's label
    write_lines(path, [cell], figures=[])
    assert open_cells(one, path) == open_cells(two, path) == []
    assert [line["model"] for line in read_runs(path)] == ["model", "b/model"]
    more = Grid({"sst2": "a/model"}, methods=("kprune",), reductions=(0.5, 0.8), seeds=(0,))
    assert [(cell.model, cell.reduction) for cell in open_cells(more, path)] == [("model", 0.8)]  # as in the file


def test_a_file_of_version_0_1_is_continued(tmp_path):
    grid = Grid({"sst2": "a/model", "squad": "b/model"}, methods=("kprune",), reductions=(0.5, 0.8), seeds=(0,))
    path = tmp_path / "results.jsonl"
    for cell in grid.cells()[:3]:
        line = {**vars(cell), "model": "model", "figures": []}
        del line["source"]
        path.open("a").write(json.dumps(line) + "\n")
    assert [(cell.task, cell.reduction) for cell in open_cells(grid, path)] == [("squad", 0.8)]
    assert len(grid_lines(grid, path)) == 3


def test_a_folder_that_changes_is_another_model_and_one_that_moves_is_not(tmp_path):
    folder, path = tmp_path / "model", tmp_path / "results.jsonl"
    folder.mkdir()
    (folder / "model.safetensors").write_text("weights")
    settings = {"methods": ("kprune",), "reductions": (0.5,), "seeds": (0,)}
    write_lines(path, open_cells(Grid({"sst2": str(folder)}, **settings), path), figures=[])
    (tmp_path / "there").mkdir()
    moved = folder.rename(tmp_path / "there/model")
    assert open_cells(Grid({"sst2": str(moved)}, **settings), path) == []
    (moved / "model.safetensors").write_text("other weights")
    (cell,) = open_cells(Grid({"sst2": str(moved)}, **settings), path)
    assert cell.model == cell.source  # `model` is the label of the weights before
    assert str(tmp_path) not in path.read_text()
