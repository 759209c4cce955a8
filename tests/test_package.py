"""The package's public names are imported on first use."""

import ast
import importlib
from importlib.metadata import version
from pathlib import Path

import pytest

import kprune


def declared_for_type_checkers() -> dict[str, tuple[str, str]]:
    """Public names with module and name there, from the imports below `if TYPE_CHECKING`."""
    tree = ast.parse(Path(kprune.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: (each.module, alias.name) for each in imports for alias in each.names}


@pytest.mark.parametrize("name", kprune.__all__)
def test_a_public_name_is_what_type_checkers_see(name):
    module, original = declared_for_type_checkers()[name]
    assert getattr(kprune, name) is getattr(importlib.import_module(module), original)


def test_every_public_name_is_listed():
    assert set(kprune.__all__) == set(declared_for_type_checkers()) - {"__version__"}
    assert set(kprune.__all__) <= set(dir(kprune))
    namespace: dict[str, object] = {}
    exec("from kprune import *", namespace)
    assert set(kprune.__all__) <= set(namespace)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'kprune' has no attribute 'prun'"):
        _ = kprune.prun
    with pytest.raises(ImportError):
        from kprune import prun  # noqa: F401


def test_the_version_is_that_of_the_distribution():
    assert kprune.__version__ == version("kprune")
