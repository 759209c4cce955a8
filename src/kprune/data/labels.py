"""Labels to numbers: class names matched between a checkpoint and its data, and numeric references."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedConfig

from kprune.data.rankings import are_rankings
from kprune.data.tasks import Test
from kprune.errors import BadSample, KpruneError
from kprune.models.outputs import CLASSIFICATION, REGRESSION


def class_names(config: PreTrainedConfig) -> list[str]:
    """The names of a model's classes, in the model's order."""
    names: dict[Any, str] = config.id2label or {}
    return [names[number] for number in sorted(names)]


def class_order(config: PreTrainedConfig, labels: Sequence[str]) -> tuple[list[int], list[str], bool]:
    """For each of the model's classes its number in the data, then notes, and whether the model names its classes."""
    names = class_names(config)
    same = list(range(len(names)))
    are_named = _are_named(names)
    if not labels:
        return same, [], are_named
    if len(names) != len(labels):
        raise KpruneError(
            f"the model has {len(names)} classes ({', '.join(names)}) and the test has {len(labels)} "
            f"({', '.join(labels)}); pass a model that was fine-tuned for this test."
        )
    if not are_named:
        meanings = ", ".join(f"{number} = {label}" for number, label in enumerate(labels))
        return same, [f"the checkpoint does not name its classes; the data's order is used ({meanings})."], False
    model_names, data_names = [_normalise(name) for name in names], [_normalise(label) for label in labels]
    if sorted(model_names) != sorted(data_names):
        raise KpruneError(
            f"the model's classes are called {', '.join(names)}, the test's {', '.join(labels)}; "
            "write the test's names into id2label of the model's config.json, in the model's order."
        )
    order = [data_names.index(name) for name in model_names]
    if order == same:
        return same, [], True
    return order, [f"the checkpoint has its classes in another order ({', '.join(names)}); matched by name."], True


def _are_named(names: Sequence[str]) -> bool:
    return not all(name in (f"LABEL_{number}", str(number)) for number, name in enumerate(names))


def class_numbers(test: Test, names: Sequence[str]) -> NDArray[np.int64]:
    """The references as class numbers; a reference may be a number, a number as text, or a class name."""
    by_name = _numbers_by_name(test.labels or names)
    numbers = []
    for row, label in enumerate(test.references or ()):
        named = by_name.get(label, by_name.get(_normalise(label))) if isinstance(label, str) else None
        numbers.append(_class_number(label, row, test.name, names) if named is None else named)
    return np.array(numbers, dtype=np.int64)


def training_labels(test: Test, kind: str, config: PreTrainedConfig) -> list[float] | None:
    """The references as the model's own training would use them, in its class order; None for other kinds of model."""
    if test.references is None or are_rankings(test.references):
        return None
    if kind == CLASSIFICATION.name:
        order, _, _ = class_order(config, test.labels)
        return [order.index(number) for number in class_numbers(test, class_names(config)).tolist()]
    return value_references(test).tolist() if kind == REGRESSION.name else None


def value_references(test: Test) -> NDArray[np.float64]:
    """The references as numbers."""
    try:
        values = np.array([float(value) for value in test.references or ()])
    except (TypeError, ValueError) as error:
        raise BadSample(f"{test.name} has a label that is not a number ({error}); name a column of numbers.") from error
    if not np.isfinite(values).all():
        row = int((~np.isfinite(values)).argmax())
        raise BadSample(f"row {row} of {test.name} has the label {values[row]}, not a finite number; correct the row.")
    return values


def _normalise(name: str) -> str:
    """A name in lower case, with one space for every run of spaces, underscores and hyphens."""
    return re.sub(r"[\s_-]+", " ", name.strip().casefold())


def _numbers_by_name(names: Sequence[str]) -> dict[str, int]:
    """Class numbers by exact name, and by normalised name where only one class has it."""
    normalised = [_normalise(name) for name in names]
    unique = {name: number for number, name in enumerate(normalised) if normalised.count(name) == 1}
    return {**unique, **{name: number for number, name in enumerate(names)}}


def _class_number(label: Any, row: int, test_name: str, names: Sequence[str]) -> int:
    """The number that a label without a class name stands for."""
    try:
        number = float(label)
    except (TypeError, ValueError):
        remedy = f"; use {', '.join(names)}, or a class number"
        if not _are_named(names):
            remedy = (
                ", and the model does not name its classes: write their names into id2label of its config.json, in the "
                f"model's order, or use the numbers 0 to {len(names) - 1}"
            )
        raise BadSample(f"row {row} of {test_name} has the label {label!r}{remedy}.") from None
    if number not in range(len(names)):
        raise BadSample(
            f"row {row} of {test_name} has the label {label!r}, but classes are numbered 0 to {len(names) - 1}; "
            "use a split with public labels, or correct the label."
        )
    return int(number)
