"""Which point of a sweep to take: the knee of its curve, or the largest reduction within a drop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kprune.evaluation.evaluator import Evaluation
from kprune.jobs.max_drop import undetectable_drop


@dataclass(frozen=True)
class Point:
    """One model of a sweep, as far as a choice depends on it."""

    reduction: float
    healed: bool
    drop: float
    """Points lost, as estimated."""
    high: float
    """Upper end of its 95 % interval, at least what the number of examples cannot rule out."""

    def is_within(self, max_drop: float, *, guard: bool) -> bool:
        return (self.high if guard else self.drop) <= max_drop


def points_of(lines: Sequence[Mapping[str, Any]]) -> list[Point]:
    """The points of a sweep's lines."""
    return [Point(line["reduction"], line["healed"], line["drop"][0], line["drop"][2]) for line in lines[1:]]


def knee_of(points: Sequence[Point]) -> Point:
    """The point after which a curve falls fastest: the farthest from the straight line to the curve's last point.

    The curve starts at the dense model, with no loss. Losses count from 0, and never less than at a smaller reduction.
    """
    ordered = sorted(points, key=lambda point: point.reduction)
    losses, most = [], 0.0
    for point in ordered:
        most = max(most, point.drop)
        losses.append(most)
    if most <= 0.0:
        return ordered[-1]
    last = ordered[-1].reduction
    heights = [point.reduction / last - loss / most for point, loss in zip(ordered, losses, strict=True)]
    return ordered[max(range(len(ordered)), key=lambda number: (heights[number], number))]


def largest_within(points: Sequence[Point], max_drop: float, *, guard: bool = True) -> Point | None:
    """The largest reduction whose drop is at most `max_drop` points; None: no point's is."""
    passed = [point for point in points if point.is_within(max_drop, guard=guard)]
    return max(passed, key=lambda point: (point.reduction, not point.healed), default=None)


def drop_of(evaluation: Evaluation) -> list[float]:
    """Points lost and the ends of the 95 % interval, the upper one at least what the examples cannot rule out."""
    drop = evaluation.drop
    least = undetectable_drop(evaluation)
    return [drop.value, drop.low, max(drop.high, least if math.isfinite(least) else 100.0)]
