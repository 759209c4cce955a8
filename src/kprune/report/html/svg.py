"""Charts as inline SVG: a plot area with axes, and the marks that figures are made of. Colours are in page.css."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kprune.report.html.markup import Child, Html, tag
from kprune.report.html.numbers import tick_label, ticks

NARROW = 300.0
"""Wider drawings shrink on a phone, and their text grows."""
MOST_TICKS = 7
"""Steps of an axis; a range that begins and ends at ticks has no more."""


@dataclass(frozen=True)
class Axis:
    """A scale from data to pixels."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (_log(each) if self.is_log else each for each in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Where the grid's lines are; an axis without extent has none."""
        if not self.high > self.low:
            return []
        if self.is_log:
            first, last = math.floor(_log(self.low) + 1e-9), math.ceil(_log(self.high) - 1e-9)
            step = max(1, -(-(last - first) // 6))
            found = [10.0**power for power in range(first, last + 1, step)]
        else:
            found = ticks(self.low, self.high, MOST_TICKS)
        return [tick for tick in found if self.low * (1 - 1e-9) - 1e-12 <= tick <= self.high * (1 + 1e-9) + 1e-12]


def _log(value: float) -> float:
    return math.log10(max(value, 1e-12))


def nice(low: float, high: float) -> tuple[float, float]:
    """A range that begins and ends at ticks; an end that is not finite counts as 0."""
    low, high = (value if math.isfinite(value) else 0.0 for value in (low, high))
    low, high = min(low, high), max(low, high)
    marks = ticks(low, high)
    return marks[0], marks[-1]


@dataclass(frozen=True)
class Plot:
    """An area with a horizontal and a vertical axis."""

    width: float
    height: float
    x: Axis
    y: Axis
    x_label: str
    y_label: str = ""
    x_text: Callable[[float], str] = tick_label
    y_text: Callable[[float], str] = tick_label

    def frame(self) -> Html:
        """Grid lines, ticks and labels."""
        left, right = self.x.start, self.x.end
        top, bottom = self.y.end, self.y.start
        parts: list[Child] = []
        for value in self.y.ticks:
            y = self.y(value)
            parts.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
            parts.append(tag("text", self.y_text(value), x=left - 6, y=y + 4, class_="tick", text_anchor="end"))
        for value in self.x.ticks:
            x = self.x(value)
            parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis"))
            parts.append(tag("text", self.x_text(value), x=x, y=bottom + 17, class_="tick", text_anchor="middle"))
        parts.append(tag("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"))
        middle = (left + right) / 2
        parts.append(tag("text", self.x_label, x=middle, y=bottom + 35, class_="label", text_anchor="middle"))
        if self.y_label:
            parts.append(tag("text", self.y_label, x=2.0, y=top - 11, class_="label"))
        return tag("g", *parts, aria_hidden="true")


def drawing(name: str, title: str, description: str, width: float, height: float, *content: Child) -> Html:
    """An SVG with its title and description, which screen readers speak."""
    return tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        tag("desc", description, id=f"{name}-desc"),
        *content,
        class_="wide" if width > NARROW else None,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
        style=f"max-width:{width * 1.35:g}px",
    )


def error_bar(x: float, low: float, high: float, kind: str) -> Html:
    """A vertical interval with ends."""
    ends = [tag("line", x1=x - 3, x2=x + 3, y1=y, y2=y, class_=f"bar {kind}") for y in (low, high)]
    return tag("g", tag("line", x1=x, x2=x, y1=low, y2=high, class_=f"bar {kind}"), *ends)


def polyline(points: Sequence[tuple[float, float]], kind: str) -> Html:
    return tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=f"line {kind}")


def dot(x: float, y: float, kind: str, value: str, radius: float = 3.5) -> Html:
    """A point whose value is shown when the pointer rests on it."""
    return tag("g", tag("title", value), tag("circle", cx=x, cy=y, r=radius, class_=f"dot {kind}"))
