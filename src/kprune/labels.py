"""What labels mean: classes matched by name between a checkpoint and its data, numbers that are numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedConfig

from kprune.errors import BadSample, KpruneError
from kprune.metrics import Array
from kprune.outputs import CLASSIFICATION, REGRESSION
from kprune.tasks import Test


def class_names(config: PreTrainedConfig) -> list[str]:
    """What a model calls its classes, in its order."""
    names: dict[Any, str] = config.id2label or {}
    return [names[number] for number in sorted(names)]


def class_order(config: PreTrainedConfig, labels: Sequence[str]) -> tuple[list[int], list[str], bool]:
    """The data's number of each of a model's classes, by name; notes on the match; and whether names were there."""
    names = class_names(config)
    same = list(range(len(names)))
    are_named = not all(name in (f"LABEL_{number}", str(number)) for number, name in enumerate(names))
    if not labels:
        return same, [], are_named
    if len(names) != len(labels):
        raise KpruneError(
            f"the model tells {len(names)} classes apart ({', '.join(names)}), and the test has {len(labels)} "
            f"({', '.join(labels)}); pass a model that was fine-tuned for it."
        )
    if not are_named:
        meant = ", ".join(f"{number} = {label}" for number, label in enumerate(labels))
        return same, [f"the checkpoint does not name its classes; they are taken in the data's order ({meant})."], False
    found, wanted = [_plain(name) for name in names], [_plain(label) for label in labels]
    if sorted(found) != sorted(wanted):
        raise KpruneError(
            f"the model's classes are called {', '.join(names)}, the test's {', '.join(labels)}; "
            "write the test's names into id2label of the model's config.json, in the model's order."
        )
    order = [wanted.index(name) for name in found]
    if order == same:
        return same, [], True
    return order, [f"the checkpoint has its classes in another order ({', '.join(names)}); matched by name."], True


def _plain(name: str) -> str:
    """A name without what people write differently: case, and what stands between words."""
    return re.sub(r"[\s_-]+", " ", name.strip().casefold())


def _by_name(names: Sequence[str]) -> dict[str, int]:
    """Numbers of classes by their names, as written and as people write them; ambiguous ones only as written."""
    plain = [_plain(name) for name in names]
    clear = {name: number for number, name in enumerate(plain) if plain.count(name) == 1}
    return {**clear, **{name: number for number, name in enumerate(names)}}


def class_numbers(test: Test, names: Sequence[str]) -> Array:
    """The references as numbers of classes: they may be numbers, numbers as text, or names."""
    by_name = _by_name(test.labels or names)
    numbers = []
    for row, label in enumerate(test.references or ()):
        if isinstance(label, str):
            named = by_name.get(label, by_name.get(_plain(label)))
            if named is not None:
                numbers.append(named)
                continue
        try:
            number = float(label)
        except (TypeError, ValueError):
            raise BadSample(
                f"row {row} of {test.name} has the label {label!r}; the classes are {', '.join(names)}."
            ) from None
        if number not in range(len(names)):
            raise BadSample(
                f"row {row} of {test.name} has the label {label!r}, and classes are numbered 0 to {len(names) - 1}; "
                "use a split whose labels are public, or mend them."
            )
        numbers.append(int(number))
    return np.array(numbers, dtype=np.int64)


def training_labels(test: Test, kind: str, config: PreTrainedConfig) -> list[float] | None:
    """The references as a model's own training would have them, in its order of classes; None where it has none."""
    if test.references is None:
        return None
    if kind == CLASSIFICATION.name:
        order, _, _ = class_order(config, test.labels)
        return [order.index(number) for number in class_numbers(test, class_names(config)).tolist()]
    return value_references(test).tolist() if kind == REGRESSION.name else None


def value_references(test: Test) -> Array:
    """The references as numbers."""
    try:
        values = np.array([float(value) for value in test.references or ()])
    except (TypeError, ValueError) as error:
        raise BadSample(f"{test.name} has a label that is not a number ({error}); name a column of numbers.") from error
    if not np.isfinite(values).all():
        raise BadSample(f"row {int((~np.isfinite(values)).argmax())} of {test.name} has no finite label; mend it.")
    return values
