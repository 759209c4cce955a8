"""The page of `kprune sweep`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kprune.jobs.sweep_choice import Point, knee_of, points_of
from kprune.report.html.documents import layers_section
from kprune.report.html.figures import Dot, Series, curve, figure
from kprune.report.html.markup import Child, Html, tag
from kprune.report.html.numbers import capital, percent, plain, scaled, signed, with_interval
from kprune.report.html.page import page
from kprune.report.html.sections import (
    Data,
    changes_section,
    command_block,
    glance,
    quality,
    section,
    settings,
    verdict,
)
from kprune.report.html.tables import Column, table
from kprune.report.sweep_table import marks_of, quality_of


def sweep_page(
    lines: Sequence[Data], *, max_drop: float | None = None, chosen: Point | None = None, command: str = ""
) -> Html:
    """The page of `kprune sweep`; the examples are those of the chosen point, or of the knee."""
    header, *found = lines
    points = points_of(lines)
    place = points.index(chosen or knee_of(points))
    shown = found[place]
    pairs = [
        ("encoder FLOPs per input", *shown["flops"], "count"),
        ("parameters", *shown["parameters"], "count"),
        ("weights", *shown["megabytes"], "MB"),
    ]
    if shown["milliseconds"]:
        batch, length = header["identity"]["shape"]
        pairs.append((f"time of {batch} × {length} tokens, torch", *shown["milliseconds"], "ms"))
    steps = [
        {"layer": layer, "kind": kind, "units": units, "kept": kept, "error_before": before, "error_after": after}
        for (layer, kind, units), kept, (before, after) in zip(
            shown["steps"], shown["kept"], shown["errors"], strict=True
        )
    ]
    proposal = [tag("p", "To make this model:"), command_block(command)]
    at = f"at {percent(shown['reduction'])}{', healed' if shown['healed'] else ''}"
    sections: list[Child] = [
        section("curve", "How much can be removed?", _sweep_figures(lines, points[place])),
        section("points", "All points", _points_table(lines, points[place])),
        section("proposal", f"The model {at}", proposal) if command else None,
        glance(pairs),
        quality(shown),
        changes_section(shown.get("changes")),
        layers_section(steps),
        settings(header["identity"]["settings"], header["command"], _sweep_facts(header)),
    ]
    return page("Sweep", header["model"], _sweep_deck(points, max_drop, chosen, shown), sections)


def _sweep_facts(header: Data) -> list[tuple[str, str]]:
    return [
        ("kprune", header["kprune"]),
        ("test", header["test"]),
        ("sample", f"{header['tokens']:,} tokens"),
        ("threads", str(header["identity"]["threads"])),
    ]


def _sweep_deck(points: Sequence[Point], max_drop: float | None, chosen: Point | None, shown: Data) -> str:
    if max_drop is not None and chosen is None:
        return f"No reduction that was tried stays within a drop of {max_drop:g} points. The page shows the knee."
    reason = "at the knee of the curve" if max_drop is None else f"the most that stays within {max_drop:g} points"
    return f"{percent(shown['reduction'])} of the encoder’s FLOPs can go, {reason}. {verdict(shown)}"


def _sweep_figures(lines: Sequence[Data], chosen: Point) -> list[Child]:
    """The main curve, against FLOPs, and small ones against parameters, megabytes and milliseconds."""
    found = lines[1:]
    name = quality_of(found[0])["name"]
    against = found[0]["against"]
    level = against[0]["value"] if against else 100.0 if name in ("agreement", "cosine", "rank agreement") else None
    points = points_of(lines)
    knee = knee_of(points)

    def notes(point: Point) -> str:
        return "knee" if point == knee else "proposed" if point == chosen else ""

    main = curve(
        "curve-svg",
        f"{name} against FLOPs removed",
        _sweep_series(found, points, lambda line: line["removed"], notes),
        labels=("encoder FLOPs removed", name),
        level=level,
        x_text=percent,
        x_range=(0.0, 1.0),
    )
    costs: list[tuple[str, Callable[[Data], float]]] = [
        ("parameters left (millions)", lambda line: float(line["parameters"][1]) / 1e6),
        ("megabytes of weights", lambda line: float(line["megabytes"][1])),
    ]
    if all(line["milliseconds"] for line in found):
        costs.append(("times as fast (measured)", _speedup))
    small = [
        curve(
            f"curve-{number}-svg",
            f"{name} against {label}",
            _sweep_series(found, points, cost, lambda point: ""),
            labels=(label, name),
            level=level,
            size=(270.0, 200.0),
        )
        for number, (label, cost) in enumerate(costs)
    ]
    caption = f"{capital(name)} with 95 % intervals against the encoder’s FLOPs that were removed."
    caption += " The dashed line is the dense model." if level is not None else ""
    others = "The same against parameters, megabytes of weights" + (" and measured speed." if len(costs) > 2 else ".")
    return [
        figure("removed", caption, main, _curve_table(found)),
        figure("costs", others, tag("div", *small, class_="panels"), _costs_table(found)),
    ]


def _speedup(line: Data) -> float:
    dense, pruned = line["milliseconds"]
    return float(dense / pruned)


def _sweep_series(found: Sequence[Data], points: Sequence[Point], cost: Any, note: Any) -> list[Series]:
    series = []
    for is_healed, name in ((False, "pruned"), (True, "healed")):
        dots = []
        for line, point in zip(found, points, strict=True):
            if line["healed"] == is_healed:
                value = quality_of(line)
                dots.append(Dot(cost(line), value["value"], value["low"], value["high"], note(point)))
        if dots:
            series.append(Series(name, sorted(dots, key=lambda each: each.x)))
    return series


def _points_table(lines: Sequence[Data], chosen: Point) -> Html:
    """What was lost, and what was won, at every point."""
    found = lines[1:]
    name = quality_of(found[0])["name"]
    numbers = (name, "points lost", "parameters", "MB", "ms", "speed-up")
    columns = [Column("removed"), *(Column(each, is_number=True) for each in numbers), Column("note")]
    rows: list[list[Child]] = []
    for line, mark in zip(found, marks_of(lines, chosen), strict=True):
        lost, low, high = line["drop"]
        times_of = line["milliseconds"]
        rows.append(
            [
                _named(line),
                plain(quality_of(line)["value"]),
                f"{signed(lost)} ({signed(low)} to {signed(high)})",
                scaled(line["parameters"][1]),
                plain(line["megabytes"][1], 1),
                plain(times_of[1], 1) if times_of else "",
                f"{plain(_speedup(line))}×" if times_of else "",
                mark,
            ]
        )
    place = points_of(lines).index(chosen)
    return table("Quality, size and time of every point, with 95 % intervals", columns, rows, chosen=place)


def _named(line: Data) -> str:
    return percent(line["reduction"]) + (", healed" if line["healed"] else "")


def _curve_table(found: Sequence[Data]) -> Html:
    """The main curve as a table."""
    name = quality_of(found[0])["name"]
    columns = [
        Column("removed"),
        Column("encoder FLOPs", is_number=True),
        Column(f"{name} (95 % interval)", is_number=True),
    ]
    rows = [[_named(line), scaled(line["flops"][1]), with_interval(quality_of(line))] for line in found]
    return table(f"{name} against FLOPs", columns, rows)


def _costs_table(found: Sequence[Data]) -> Html:
    """The small curves as a table."""
    name = quality_of(found[0])["name"]
    columns = [Column("removed"), *(Column(each, is_number=True) for each in ("parameters", "MB", "speed-up", name))]
    rows = [
        [
            _named(line),
            scaled(line["parameters"][1]),
            plain(line["megabytes"][1], 1),
            f"{plain(_speedup(line))}×" if line["milliseconds"] else "",
            plain(quality_of(line)["value"]),
        ]
        for line in found
    ]
    return table(f"{name} against size and speed", columns, rows)
