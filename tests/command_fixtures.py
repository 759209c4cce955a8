"""Fixtures for whole commands and jobs; a test module loads them with `pytest_plugins`."""

from pathlib import Path

import pytest
from command_line import CLASSES, kprune, write_checkpoint, write_table, write_text


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    """A tiny classifier in half precision, with a real tokenizer."""
    names = dict(enumerate(CLASSES))
    return write_checkpoint(tmp_path_factory.mktemp("models") / "tiny", half=True, id2label=names)


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "lines.txt")


@pytest.fixture(scope="session")
def table(tmp_path_factory) -> Path:
    """Labelled rows, as a user has them."""
    return write_table(tmp_path_factory.mktemp("table") / "mine.csv")


@pytest.fixture(scope="session")
def small(checkpoint, text, tmp_path_factory) -> Path:
    """The checkpoint, pruned; tests do not change it."""
    folder = tmp_path_factory.mktemp("pruned") / "small"
    result = kprune("prune", checkpoint, folder, "--text", text, "--reduction", 0.6, "--tokens", 1000, "--align", 1)
    assert result.exit_code == 0, result.output
    return folder
