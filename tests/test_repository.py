"""Files about the repository agree with pyproject.toml: versions that are tested, hooks, citation, issue forms."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def read(name: str):
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def test_the_workflow_runs_everything_on_the_oldest_and_the_newest_versions():
    jobs = read(".github/workflows/ci.yml")["jobs"]
    matrix = jobs["check"]["strategy"]["matrix"]
    assert matrix["python"][0] == PROJECT["requires-python"].removeprefix(">=")
    (oldest,) = (each["transformers"] for each in matrix["include"])
    assert f"transformers>={oldest}" in PROJECT["dependencies"]
    commands = [step.get("run", "") for step in jobs["check"]["steps"]]
    assert ".ci/run" in commands
    assert ".ci/run" in [step.get("run") for step in jobs["upcoming"]["steps"]]


def test_the_workflow_names_files_and_targets_that_exist():
    text = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    assert [name for name in re.findall(r"python (\S+\.py)", text) if not (ROOT / name).is_file()] == []
    targets = (ROOT / "Makefile").read_text("utf-8")
    stamps = re.findall(r"\.venv(/\w+\.stamp)", text)
    assert len(stamps) == 2
    assert [stamp for stamp in stamps if f"$(VENV){stamp}:" not in targets] == []


def test_hooks_are_the_checks_of_the_makefile():
    hooks = [hook["entry"] for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert [hook.removeprefix(".venv/bin/") for hook in hooks] == ["ruff check --fix", "ruff format", "mypy"]


def test_the_citation_has_the_version_and_the_licence():
    citation = read("CITATION.cff")
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert citation["references"][0]["year"] == 2024


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_have_what_the_host_requires(path):
    form = yaml.safe_load(path.read_text("utf-8"))
    if path.stem == "config":
        return
    assert {"name", "description", "body"} <= set(form)
    ids = [part["id"] for part in form["body"]]
    assert len(ids) == len(set(ids))
    assert all(part["attributes"]["label"] for part in form["body"])


def test_every_page_of_the_site_is_in_its_menu_and_exists():
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    pages = set(re.findall(r": ([\w/-]+\.md)$", text, re.MULTILINE))
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not page.startswith("reference/")} == written
