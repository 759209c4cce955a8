"""The grid of a comparison: methods × tasks × reductions × seeds."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from kprune.checkpoints.files import short_names
from kprune.config import PruneConfig, info_of, type_of
from kprune.errors import KpruneError
from kprune.pruning.registry import METHODS, resolve


@dataclass(frozen=True)
class Grid:
    """What is compared."""

    models: dict[str, str]
    """The model of each task, a folder or hub name."""
    methods: tuple[str, ...] = ("kprune", "kwon", "kcm", "magnitude", "random")
    """Names; settings of K-prune may follow: `kprune criterion=released`."""
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
        distinct = list(dict.fromkeys(sources.values()))
        labels = dict(zip(distinct, short_names(distinct), strict=True))
        return [
            Cell(task, labels[sources[task]], method, reduction, seed, self.tokens, self.limit, sources[task])
            for task, seed, method, reduction in product(self.models, self.seeds, self.methods, self.reductions)
        ]


@dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    task: str
    model: str
    """The last parts of the source that tell the models of a results file apart."""
    method: str
    reduction: float
    seed: int
    tokens: int
    limit: int | None
    source: str = ""
    """The model's folder, or its hub name; empty in results of version 0.1."""


def model_source(model: str) -> str:
    """What identifies a model: the path of a folder, or a hub name."""
    return str(Path(model).resolve()) if Path(model).exists() else model


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


def _parser(name: str) -> Callable[[str], Any]:
    kind = type_of(PruneConfig, name)
    return _yes_or_no if kind is bool else kind


KNOBS = {each.name: _parser(each.name) for each in fields(PruneConfig) if info_of(each).in_grid}
"""Settings that a variant of K-prune may change, as in `kprune refit=no`, with the parsers of their values."""

EXPECTED = {bool: "yes or no", int: "a whole number", float: "a number", str: "a name"}


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
    """A method's name and the settings that follow it, all checked."""
    name, *settings = text.split() or [""]
    if name not in METHODS:
        raise KpruneError(f"unknown method {name!r}; use one of {', '.join(METHODS)}.")
    knobs: dict[str, Any] = {}
    for setting in settings:
        knob, _, value = setting.partition("=")
        if name != "kprune" or knob not in KNOBS:
            raise KpruneError(f"{text!r} sets {knob!r}; kprune takes {', '.join(KNOBS)}, and rivals take no settings.")
        try:
            knobs[knob] = KNOBS[knob](value)
        except (ValueError, KeyError) as error:
            expected = EXPECTED[type_of(PruneConfig, knob)]
            raise KpruneError(f"{text!r} sets {knob} to {value!r}; it must be {expected}.") from error
    resolve(PruneConfig(method=name, **knobs), head_width=1)
    return name, knobs
