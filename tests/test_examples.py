"""The notebook runs from top to bottom, on the embedded real model."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples/first_steps.ipynb"


def code_cells() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_has_no_outputs():
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    assert [cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.real
def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    shown = []
    for number, cell in enumerate(code_cells()):
        *body, last = ast.parse(cell).body
        if not isinstance(last, ast.Expr):
            body.append(last)
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):  # what a notebook displays
            shown.append(eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names))
    tables = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert len(tables) == 2
    assert (tmp_path / "small-minilm/modules.json").is_file()
    assert names["result"].fidelity[0].value > 80  # cosine to the dense model, in percent
    assert "parameters before" in capsys.readouterr().out
