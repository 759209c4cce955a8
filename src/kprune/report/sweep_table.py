"""The points of a sweep as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from kprune.jobs.sweep_choice import Point, knee_of, points_of

Line = Mapping[str, Any]


def quality_of(line: Line) -> Mapping[str, Any]:
    """The main figure of a point: its metric on the test, or how alike its outputs are to the dense model's."""
    figures = line["figures"] or line["fidelity"]
    quality: Mapping[str, Any] = figures[0]
    return quality


def named(point: Point) -> str:
    """A point's reduction, and whether it is healed."""
    return f"{point.reduction:.0%}" + (" healed" if point.healed else "")


def marks_of(lines: Sequence[Line], chosen: Point | None) -> list[str]:
    """What a table says of each point: the knee, and the proposal."""
    points = points_of(lines)
    knee = knee_of(points)
    marks = []
    for point in points:
        parts = ["knee"] if point == knee else []
        if point == chosen:
            parts.append("proposed")
        marks.append(", ".join(parts))
    return marks


def sweep_table(lines: Sequence[Line], chosen: Point | None) -> Table:
    """Return one row per point: quality with its interval, points lost, size and time."""
    header, *points = lines
    name = quality_of(points[0])["name"]
    title = f"{header['model']} on {header['test']}, {points[0]['examples']:,} examples, 95 % intervals"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for heading in ("removed", name, "points lost", "M params", "MB", "ms", "speed-up"):
        table.add_column(heading, justify="right", no_wrap=True)
    first = points[0]
    whole = "" if not first["against"] else f"{first['against'][0]['value']:.2f}"
    table.add_row("0%", whole, "", *_sizes(first, 0), "")
    for line, point in zip(points, points_of(lines), strict=True):
        table.add_row(*_cells(line), style="bold" if point == chosen else "")
    return table


def _cells(line: Line) -> list[str]:
    lost, low, high = (round(value, 2) + 0.0 for value in line["drop"])  # no "-0.00"
    times = line["milliseconds"]
    return [
        f"{line['reduction']:.0%}" + (" healed" if line["healed"] else ""),
        f"{quality_of(line)['value']:.2f}",
        f"{lost:+.2f} ({low:+.2f} to {high:+.2f})",
        *_sizes(line, 1),
        f"{times[0] / times[1]:.2f}×" if times else "",
    ]


def _sizes(line: Line, which: int) -> list[str]:
    """Parameters, megabytes and milliseconds of the dense model (0) or the pruned one (1)."""
    times = line["milliseconds"]
    return [
        f"{line['parameters'][which] / 1e6:.2f}",
        f"{line['megabytes'][which]:.1f}",
        f"{times[which]:.1f}" if times else "",
    ]
