"""The grid of a comparison: methods × tasks × reductions × seeds."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from kprune.checkpoints.files import SIDE_SUFFIXES
from kprune.checkpoints.names import short_name
from kprune.config import DEFAULT_HEAL, HealConfig, PruneConfig, info_of, type_of
from kprune.errors import KpruneError
from kprune.pruning.knowledge_pruning import KPrune
from kprune.pruning.registry import METHODS, OF_RIVALS, resolve

MODEL_SUFFIXES = {".safetensors", *SIDE_SUFFIXES}
"""Suffixes of the files that a model consists of."""


@dataclass(frozen=True)
class Grid:
    """What is compared."""

    models: dict[str, str]
    """The model of each task, a folder or hub name."""
    methods: tuple[str, ...] = ("kprune", "kwon", "kcm", "magnitude", "random")
    """Names; settings may follow: `kprune criterion=released`, `textpruner iterations=4`."""
    reductions: tuple[float, ...] = (0.4, 0.6, 0.8)
    seeds: tuple[int, ...] = (0, 1, 2)
    tokens: int = 25_000
    data: str | None = None
    """Folder of the data sets' folders; None: the hub."""
    limit: int | None = None
    """Rows of the validation split, evenly spread; None: all."""

    def cells(self) -> list[Cell]:
        """Every combination; cells that share a sample are adjacent."""
        sources = {task: model_source(model) for task, model in self.models.items()}
        labels = _labels({sources[task]: model for task, model in self.models.items()})
        return [
            Cell(task, labels[sources[task]], method, reduction, seed, self.tokens, self.limit, sources[task])
            for task, seed, method, reduction in product(self.models, self.seeds, self.methods, self.reductions)
        ]


@dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    task: str
    model: str
    """The last part of the model's name, or two; the source where they do not tell the models of a file apart."""
    method: str
    reduction: float
    seed: int
    tokens: int
    limit: int | None
    source: str = ""
    """What identifies the model (`model_source`); empty in results of version 0.1."""


def model_source(model: str) -> str:
    """What identifies a model: its hub name, or the name of its folder and a digest of the files in it.

    A folder's path is not part of it, because results are published.
    """
    folder = Path(model)
    if not folder.is_dir():
        return short_name(model)
    parts = [folder, *(sorted(folder.glob("*/")) if (folder / "modules.json").is_file() else ())]
    digest = hashlib.sha256()
    for part in parts:
        for file in sorted(part.iterdir()):
            if file.suffix in MODEL_SUFFIXES and file.is_file():
                with file.open("rb") as content:
                    digest.update(f"{file.relative_to(folder)}\0".encode())
                    digest.update(hashlib.file_digest(content, "sha256").digest())
    return f"{folder.resolve().name}@{digest.hexdigest()[:12]}"


def _labels(models: dict[str, str]) -> dict[str, str]:
    """A label for each source, given the models by source; differing labels for differing sources."""
    for parts in (1, 2):  # more would be a path of the machine
        labels = ["/".join(Path(model).resolve().parts[-parts:]) for model in models.values()]
        if len(set(labels)) == len(labels):
            return dict(zip(models, labels, strict=True))
    return {source: source for source in models}


def read_grid(path: Path) -> dict[str, Any]:
    """A grid's fields from a TOML file."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise KpruneError(f"cannot read {path} as TOML: {error}; correct the file.") from error
    known = {each.name for each in fields(Grid)}
    unknown = sorted(set(content) - known)
    if unknown:
        raise KpruneError(f"{path} sets {unknown[0]!r}; it may set {', '.join(sorted(known))}.")
    for name, value in content.items():
        expected = {"models": dict, "tokens": int, "limit": int, "data": str}.get(name, list)
        if not isinstance(value, expected):
            kinds = {dict: "a table", int: "a whole number", str: "a text", list: "a list"}
            raise KpruneError(f"{path} sets {name} to {value!r}; it must be {kinds[expected]}.")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}


def _yes_or_no(text: str) -> bool:
    return {"yes": True, "no": False}[text]


HOMES = {each.name: config for config in (PruneConfig, HealConfig) for each in fields(config) if info_of(each).in_grid}
"""The configuration of each setting that a variant may change."""


def _parser(name: str) -> Callable[[str], Any]:
    kind = type_of(HOMES[name], name)
    return _yes_or_no if kind is bool else kind


KNOBS = {name: _parser(name) for name in HOMES}
"""Settings that a variant may change, as in `kprune refit=no`, with the parsers of their values."""

EXPECTED = {bool: "yes or no", int: "a whole number", float: "a number", str: "a name"}


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
    """A method's name and the settings that follow it, all checked."""
    name, *settings = text.split() or [""]
    if name not in METHODS:
        raise KpruneError(f"unknown method {name!r}; use one of {', '.join(METHODS)}.")
    knobs: dict[str, Any] = {}
    allowed = [each for each in KNOBS if each not in OF_RIVALS] if name == KPrune.name else METHODS[name].settings
    for setting in settings:
        knob, _, value = setting.partition("=")
        if knob not in allowed:
            raise KpruneError(f"{text!r} sets {knob!r}; {name} takes {', '.join(allowed) or 'no settings'}.")
        try:
            knobs[knob] = KNOBS[knob](value)
        except (ValueError, KeyError) as error:
            expected = EXPECTED[type_of(HOMES[knob], knob)]
            raise KpruneError(f"{text!r} sets {knob} to {value!r}; it must be {expected}.") from error
    pruning, healing = split_settings(knobs)
    resolve(PruneConfig(method=name, **pruning), head_width=1)
    HealConfig(**healing)
    return name, knobs


def split_settings(knobs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of pruning, and those of healing; the latter are empty if a variant is not healed."""
    pruning = {name: value for name, value in knobs.items() if HOMES[name] is PruneConfig}
    healing = {name: value for name, value in knobs.items() if HOMES[name] is HealConfig}
    if healing and "heal" not in healing:
        raise KpruneError(f"a variant sets {next(iter(healing))} without heal; add heal={DEFAULT_HEAL}, for example.")
    return pruning, healing
