"""Names of models: hub names are kept, local paths are shortened to their last part."""

from __future__ import annotations

import re
from pathlib import Path

from transformers import PreTrainedConfig

CACHED = re.compile(r"/models--([^/]+)/snapshots/")
"""A folder in the hub's cache, which has the model's name in its path."""


def is_path(name: str) -> bool:
    """Whether a name is a local path, not the name of a model on the hub."""
    return name.startswith(("/", ".", "~")) or "\\" in name or name.count("/") > 1 or Path(name).is_dir()


def hub_name(name: str) -> str | None:
    """The hub name of a model, from its name or from its folder in the hub's cache; None for other folders."""
    cached = CACHED.search(name + "/")
    if cached:
        return cached[1].replace("--", "/")
    return name if name and not is_path(name) else None


def short_name(name: str) -> str:
    """A name for titles: the hub name, or the last part of a path."""
    return hub_name(name) or Path(name).expanduser().resolve().name


def without_folders(text: str) -> str:
    """A text for publication: of each path in it, the last part."""
    return re.sub(r"[^\s'\"=]*/", "", text)


def origin_of(config: PreTrainedConfig) -> str:
    """The folder or hub name from which a model was loaded; empty if it was built from a config."""
    return str(getattr(config, "_name_or_path", None) or "")
