import json
import re

import page_data
import pytest
from click.testing import CliRunner
from command_line import kprune
from fast_clock import install_fast_clock

from kprune.cli.main import main
from kprune.deploy import benchmark
from kprune.deploy.footprint import Footprint

pytest_plugins = ["command_fixtures"]
COLUMNS = ("--text-column", "text", "--label-column", "verdict")


@pytest.fixture(autouse=True)
def _fast_clock(monkeypatch):
    install_fast_clock(monkeypatch)
    monkeypatch.setattr(
        benchmark, "measure_footprint", lambda name, source, graph, runtime, *_: Footprint(name, runtime.name, 1, 2, 3)
    )


def test_prune_writes_a_page_with_its_command(checkpoint, table, tmp_path):
    page = tmp_path / "page.html"
    options = ("--reduction", 0.7, "--tokens", 600, "--align", 1, "--evaluate", "--report", page, "--json")
    result = kprune("prune", checkpoint, tmp_path / "small", "--data", table, *COLUMNS, *options)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert f"The page is {page}; open it in a browser." in " ".join(result.stderr.split())
    written = page.read_text()
    assert "Before and after" in written
    assert f"Measured on {printed['evaluation']['examples']} examples of mine.csv" in written
    assert f"kprune prune {checkpoint} {tmp_path / 'small'}" in re.sub("<[^>]+>", "", written)
    assert "answer" in written
    assert printed["megabytes"][1] < printed["megabytes"][0]
    again = tmp_path / "again.html"
    (tmp_path / "result.json").write_text(result.stdout)
    assert kprune("report", tmp_path / "result.json", again).exit_code == 0
    assert "Before and after" in again.read_text()
    folder = tmp_path / "folder.html"
    assert kprune("report", tmp_path / "small", folder).exit_code == 0
    assert "Layer by layer" in folder.read_text()


def test_evaluate_and_bench_write_pages(checkpoint, small, table, tmp_path):
    page = tmp_path / "page.html"
    data = ("--data", table, *COLUMNS, "--limit", 40, "--report", page)
    result = kprune("evaluate", small, "--against", checkpoint, *data)
    assert result.exit_code == 0, result.output
    assert "Examples whose answer changed" in page.read_text()
    times = ("--shape", "2x8", "--seconds", 0, "--runtime", "torch", "--threads", 1, "--report", page)
    result = kprune("bench", small, "--against", checkpoint, *times)
    assert result.exit_code == 0, result.output
    assert "torch, 2 × 8" in page.read_text()


def test_a_page_that_could_not_be_written_is_refused_before_any_work(checkpoint, text, tmp_path):
    for page in (tmp_path / "page.txt", tmp_path / "nowhere" / "page.html"):
        for command in (
            ("prune", checkpoint, tmp_path / "out", "--text", text, "--reduction", 0.5),
            ("sweep", checkpoint, tmp_path / "out", "--text", text),
            ("evaluate", checkpoint, "--text", text),
            ("bench", checkpoint),
            ("compare", tmp_path / "out"),
        ):
            result = kprune(*command, "--report", page)
            assert result.exit_code == 2
            assert "name an .html file in a folder that exists" in " ".join(result.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_results_that_are_none_give_one_sentence(tmp_path):
    (tmp_path / "sweep.jsonl").write_text(json.dumps(page_data.sweep()[0]) + "\n")
    result = CliRunner().invoke(main, ["report", str(tmp_path / "sweep.jsonl"), str(tmp_path / "page.html")])
    assert result.exit_code == 1
    assert "has no finished point yet; start kprune sweep again." in " ".join(result.stderr.split())
    assert not (tmp_path / "page.html").exists()
