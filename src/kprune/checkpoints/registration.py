"""Register the plug-in with transformers, at once or as soon as transformers is imported.

The plug-in needs torch and transformers, which take seconds to import. `import kprune` therefore only watches for the
import of the module that defines `from_pretrained`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

WATCHED = "transformers.modeling_utils"
"""The module that defines `from_pretrained`."""


def register() -> None:
    """Import the plug-in, which registers itself."""
    importlib.import_module("kprune.checkpoints.hf_plugin")


def register_with_transformers() -> None:
    """Register now if models can be loaded already, else after the import that makes it possible."""
    if WATCHED in sys.modules:
        register()
    elif not any(isinstance(finder, Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, Watcher())


class Watcher(MetaPathFinder):
    """Registers the plug-in after the watched module has been executed; it does not change how modules are found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != WATCHED:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            _register_after(spec.loader)
        return spec


def _register_after(loader: Any) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        loader.exec_module = execute
        try:
            execute(module)
        except BaseException:
            sys.meta_path.insert(0, Watcher())  # the import may be tried again
            raise
        register()

    loader.exec_module = exec_module
