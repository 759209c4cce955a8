"""What IPython offers inside a notebook, as far as kprune asks for it."""

import sys
from types import SimpleNamespace

import pytest


def pretend_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the code believe that a notebook's kernel runs it."""
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
