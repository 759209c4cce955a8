"""Figures of a page: curves, units per layer, errors, times and intervals, each with its data as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kprune.report.html.markup import Child, Html, tag
from kprune.report.html.numbers import interval, percent, plain, tick_label
from kprune.report.html.svg import Axis, Plot, dot, drawing, error_bar, nice, polyline
from kprune.report.html.tables import Column, table

LEFT, RIGHT, TOP, BOTTOM = 46.0, 14.0, 30.0, 44.0
"""Margins of a plot."""
DODGE = 2.5
"""Pixels between the points of two series at one place, so that no interval hides another."""
MOST_SERIES = 6
"""Series with a colour of their own."""


def figure(name: str, caption: str, content: Child, data: Child) -> Html:
    """A figure with its caption, and its data as a table to be opened."""
    alternative = tag("details", tag("summary", "The figure as a table"), data)
    return tag("figure", content, tag("figcaption", caption), alternative, id=name)


@dataclass(frozen=True)
class Dot:
    """A measured point with the interval of its vertical value."""

    x: float
    y: float
    low: float
    high: float
    note: str = ""
    """What is written beside it."""


@dataclass(frozen=True)
class Series:
    """Points that a line joins."""

    name: str
    dots: Sequence[Dot]


def curve(
    name: str,
    title: str,
    series: Sequence[Series],
    *,
    labels: tuple[str, str],
    level: float | None = None,
    size: tuple[float, float] = (440.0, 280.0),
    x_text: Callable[[float], str] = tick_label,
    x_range: tuple[float, float] | None = None,
) -> Html:
    """Lines of a quantity against a cost; `level` is the dense model's value."""
    dots = [each for line in series for each in line.dots]
    values = [value for each in dots for value in (each.low, each.high)] + ([] if level is None else [level])
    width, height = size
    x = Axis(*(x_range or nice(min(d.x for d in dots), max(d.x for d in dots))), LEFT, width - RIGHT)
    y = Axis(*nice(min(values), max(values)), height - BOTTOM, TOP)
    plot = Plot(width, height, x, y, labels[0], labels[1], x_text)
    marks: list[Child] = [plot.frame()]
    if level is not None:
        marks.append(tag("line", x1=x.start, x2=x.end, y1=y(level), y2=y(level), class_="level"))
    notes = [] if level is None else [_note("dense", x.end, y(level) - 5, "end")]
    for number, line in enumerate(series):
        aside = DODGE * (number - 0.5 * (len(series) - 1))
        moved = replace(x, start=x.start + aside, end=x.end + aside)
        marks.append(_series(line, f"s{number % MOST_SERIES}", moved, y, x_text))
        notes += [_note_below(each, moved, y) for each in line.dots if each.note]
    marks += notes  # above all lines
    described = f"{labels[1]} against {labels[0]}: " + "; ".join(
        f"{line.name}, " + ", ".join(f"{plain(d.y)} at {x_text(d.x)}" for d in line.dots) for line in series
    )
    return tag("div", drawing(name, title, described, width, height, *marks), legend([line.name for line in series]))


def _series(line: Series, kind: str, x: Axis, y: Axis, x_text: Callable[[float], str]) -> Html:
    marks: list[Child] = [polyline([(x(each.x), y(each.y)) for each in line.dots], kind)]
    for each in line.dots:
        marks.append(error_bar(x(each.x), y(each.low), y(each.high), kind))
        spoken = f"{line.name}, {x_text(each.x)}: {plain(each.y)} ({interval(each.low, each.high)})"
        marks.append(
            dot(x(each.x), y(each.y), f"{kind} marked" if each.note else kind, spoken, 5 if each.note else 3.5)
        )
    return tag("g", *marks)


def _note_below(dot: Dot, x: Axis, y: Axis) -> Html:
    """A dot's note, below its interval."""
    at = x(dot.x)
    anchor = "end" if at > x.start + 0.7 * (x.end - x.start) else "middle"
    return _note(dot.note, at, min(y(dot.low) + 15, y.start - 4), anchor, " strong")


def _note(text: str, x: float, y: float, anchor: str, kind: str = "") -> Html:
    return tag("text", text, x=x, y=y, class_=f"note{kind}", text_anchor=anchor)


def legend(names: Sequence[str]) -> Html | None:
    """The names of the series with their colours, if there are several."""
    if len(names) < 2:
        return None
    items = [tag("li", tag("span", class_=f"key s{n % MOST_SERIES}"), each) for n, each in enumerate(names)]
    return tag("ul", *items, class_="legend", aria_hidden="true")


def units_kept(name: str, steps: Sequence[Mapping[str, Any]]) -> Html:
    """Bars of the heads and neurons that every layer keeps; `steps` have layer, kind, units and a number kept."""
    layers = sorted({step["layer"] for step in steps}, reverse=True)
    kinds = [(kind, title) for kind, title in KINDS if any(step["kind"] == kind for step in steps)]
    width, row = 440.0, 19.0
    height = TOP + row * len(layers) + 8
    panel = (width - 34.0) / len(kinds)
    marks: list[Child] = []
    by_place = {(step["layer"], step["kind"]): step for step in steps}
    for number, (kind, title) in enumerate(kinds):
        most = max(step["units"] for step in steps if step["kind"] == kind)
        left, room = 34.0 + number * panel, panel - 52.0
        marks.append(tag("text", f"{title} (of {most:,})", x=left, y=16.0, class_="label"))
        for place, layer in enumerate(layers):
            step = by_place.get((layer, kind))
            if step is not None:
                marks.append(_unit_bar(step, left, TOP + place * row, room, most, number))
    for place, layer in enumerate(layers):
        marks.append(tag("text", str(layer), x=24.0, y=TOP + place * row + 12, class_="tick", text_anchor="end"))
    title = "Heads and neurons kept per layer"
    spoken = "; ".join(f"layer {s['layer']} {s['kind']}: {s['kept']:,} of {s['units']:,}" for s in steps)
    rows = [[str(layer), *(_kept_cell(by_place.get((layer, kind))) for kind, _ in kinds)] for layer in reversed(layers)]
    columns = [Column("layer"), *(Column(title, is_number=True) for _, title in kinds)]
    caption = "Attention heads and feed-forward neurons that each layer keeps; the pale part was removed."
    return figure(
        name, caption, drawing(f"{name}-svg", title, spoken, width, height, *marks), table(title, columns, rows)
    )


KINDS = (("attention", "heads"), ("ffn", "neurons"))
"""Kinds of sublayers, and what their units are called."""


def _unit_bar(step: Mapping[str, Any], x: float, y: float, room: float, most: int, number: int) -> Html:
    kept, whole = room * step["kept"] / most, room * step["units"] / most
    return tag(
        "g",
        tag("rect", x=x, y=y + 2, width=whole, height=13.0, class_="removed"),
        tag("rect", x=x, y=y + 2, width=kept, height=13.0, class_=f"fill s{number}"),
        tag("text", f"{step['kept']:,}", x=x + whole + 5, y=y + 12.5, class_="tick"),
    )


def _kept_cell(step: Mapping[str, Any] | None) -> str:
    return "" if step is None else f"{step['kept']:,} of {step['units']:,}"


def errors(name: str, steps: Sequence[Mapping[str, Any]]) -> Html | None:
    """The error of the stream after each sublayer, before and after the refit, on a logarithmic axis."""
    pairs = [(step, step["error_before"], step["error_after"]) for step in steps]
    known = [value for _, before, after in pairs for value in (before, after) if value and value > 0]
    if not known:
        return None
    width, row = 440.0, 17.0
    height = TOP + row * len(steps) + BOTTOM
    low = 10.0 ** (len(f"{1 / min(known):.0f}") * -1) if min(known) < 1 else 0.1
    x = Axis(max(low, 1e-9), max(1.0, max(known)) if max(known) > 0.1 else 10 * max(known), 104.0, width - RIGHT, True)
    y = Axis(0.0, float(len(steps)), height - BOTTOM, TOP)
    plot = Plot(width, height, x, Axis(0.0, 0.0, height - BOTTOM, TOP), "error, ‖T − S‖² / ‖T‖²", "", _power)
    marks: list[Child] = [plot.frame()]
    for place, (step, before, after) in enumerate(pairs):
        at = y(place + 0.5)
        sublayer = f"layer {step['layer']} {step['kind']}"
        marks.append(tag("text", f"{step['layer']} {step['kind']}", x=96.0, y=at + 4, class_="tick", text_anchor="end"))
        marks += [tag("line", x1=x(before), x2=x(after), y1=at, y2=at, class_="link")] if before and after else []
        marks += [dot(x(before), at, "s1 hollow", f"{sublayer} before: {before:.4g}")] if before else []
        marks += [dot(x(after), at, "s0", f"{sublayer} after: {after:.4g}")] if after else []
    title = "Error of the residual stream after each sublayer"
    spoken = "; ".join(f"layer {s['layer']} {s['kind']}: {_error(b)} before, {_error(a)} after" for s, b, a in pairs)
    rows = [[f"layer {s['layer']} {s['kind']}", _error(before), _error(after)] for s, before, after in pairs]
    columns = [Column("sublayer"), Column("before the refit", is_number=True), Column("after", is_number=True)]
    has_before = any(before for _, before, _ in pairs)
    caption = "How far the stream is from the dense model's, on the sample: " + (
        "before the refit of each sublayer (ring) and after it (dot)." if has_before else "after the refit."
    )
    return figure(
        name, caption, drawing(f"{name}-svg", title, spoken, width, height, *marks), table(title, columns, rows)
    )


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}" if value >= 0.001 or not value else f"{value:.1e}"


def _power(value: float) -> str:
    return tick_label(value) if value >= 0.0001 else f"{value:.0e}"


def intervals(
    name: str, title: str, rows: Sequence[tuple[str, float, float, float, str]], *, zero: bool = False
) -> Html:
    """Values with intervals on one axis, a row each: (name, value, low, high, kind of colour)."""
    width, row = 440.0, 26.0
    height = 12 + row * len(rows) + 26
    ends = [end for each in rows for end in each[2:4]] + ([0.0] if zero else [])
    x = Axis(*nice(min(ends), max(ends)), 132.0, width - RIGHT)
    base = height - 26
    marks: list[Child] = [Plot(width, height, x, Axis(0.0, 0.0, base, 12.0), "").frame()]
    if zero:
        marks.append(tag("line", x1=x(0.0), x2=x(0.0), y1=8.0, y2=base, class_="level"))
    for place, (label, value, low, high, kind) in enumerate(rows):
        at = 12 + row * (place + 0.5)
        marks.append(tag("text", _cut(label, 13), x=124.0, y=at + 4, class_="tick", text_anchor="end"))
        marks.append(tag("line", x1=x(low), x2=x(high), y1=at, y2=at, class_=f"span {kind}"))
        marks.append(dot(x(value), at, kind, f"{label}: {plain(value)} ({interval(low, high)})", 4.5))
    spoken = "; ".join(f"{label}: {plain(value)} ({interval(low, high)})" for label, value, low, high, _ in rows)
    return drawing(name, title, spoken, width, height, *marks)


def times(name: str, timings: Sequence[Mapping[str, Any]]) -> Html:
    """Bars of the median time per batch, a panel per runtime and shape; a tick marks the 95th percentile."""
    cases = list(dict.fromkeys((each["runtime"], each["batch"], each["length"]) for each in timings))
    models = list(dict.fromkeys(each["model"] for each in timings))
    width, row, y = 440.0, 21.0, 6.0
    marks: list[Child] = []
    for runtime, batch, length in cases:
        group = [t for t in timings if (t["runtime"], t["batch"], t["length"]) == (runtime, batch, length)]
        most = min(max(t["p95_ms"] for t in group), LATEST * max(t["p50_ms"] for t in group))
        marks.append(tag("text", f"{runtime}, {batch} × {length}", x=0.0, y=y + 12, class_="label"))
        y += 18
        for each in group:
            marks.append(_time_bar(each, y, most, models.index(each["model"])))
            y += row
        y += 12
    title = "Time per batch by runtime and shape"
    spoken = "; ".join(
        f"{t['model']} in {t['runtime']}, {t['batch']} × {t['length']}: {plain(t['p50_ms'], 1)} ms" for t in timings
    )
    caption = (
        "Median milliseconds per batch (batch × tokens); the thin mark is the 95th percentile. Bars of one panel share "
        "a scale."
    )
    content = drawing(f"{name}-svg", title, spoken, width, y, *marks)
    return figure(name, caption, content, _times_table(title, timings))


LATEST = 1.5
"""A 95th percentile beyond this multiple of the slowest median is drawn at the panel's end; the table has its value."""


def _time_bar(timing: Mapping[str, Any], y: float, most: float, number: int) -> Html:
    scale = 190.0 / most
    length, late = scale * timing["p50_ms"], min(scale * timing["p95_ms"], 190.0)
    speedup = f", {plain(timing['speedup'])}×" if timing.get("speedup") else ""
    return tag(
        "g",
        tag("text", _cut(timing["model"]), x=124.0, y=y + 12, class_="tick", text_anchor="end"),
        tag("rect", x=130.0, y=y + 2, width=length, height=13.0, class_=f"fill s{number % MOST_SERIES}"),
        tag("line", x1=130 + late, x2=130 + late, y1=y, y2=y + 17, class_="axis"),
        tag("text", f"{plain(timing['p50_ms'], 1)} ms{speedup}", x=136 + late, y=y + 12, class_="tick"),
    )


def _cut(name: str, most: int = 15) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _times_table(title: str, timings: Sequence[Mapping[str, Any]]) -> Html:
    numbers = ("p50 ms", "p95 ms", "texts/s", "speed-up", "FLOPs ratio")
    columns = [Column("model"), Column("runtime"), Column("shape"), *(Column(each, is_number=True) for each in numbers)]
    rows = [
        [
            each["model"],
            each["runtime"],
            f"{each['batch']} × {each['length']}",
            plain(each["p50_ms"], 1),
            plain(each["p95_ms"], 1),
            plain(each["texts_per_second"], 0),
            f"{plain(each['speedup'])}×" if each.get("speedup") else "",
            f"{plain(each['flops_ratio'])}×" if each.get("flops_ratio") else "",
        ]
        for each in timings
    ]
    return table(title, columns, rows)


def share_bar(share: float) -> Html:
    """A small bar of what is left, for a table's cell."""
    width = 100.0 * min(max(share, 0.0), 1.0)
    content = [
        tag("rect", x=0.0, y=0.0, width=100.0, height=8.0, class_="removed"),
        tag("rect", x=0.0, y=0.0, width=width, height=8.0, class_="fill s0"),
    ]
    svg = tag("svg", *content, viewBox="0 0 100 8", class_="spark", aria_hidden="true", preserveAspectRatio="none")
    return Html(svg + tag("span", percent(share)))
