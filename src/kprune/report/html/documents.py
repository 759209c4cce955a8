"""The pages: what each result shows, from the data that its command prints as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from statistics import mean
from typing import Any

from kprune.config import PruneConfig
from kprune.jobs.sweep_choice import Point, knee_of, points_of
from kprune.report.comparison_runs import Run, by_method, default_runs, mean_and_spread, metric, metric_name
from kprune.report.html.figures import Dot, Series, curve, errors, figure, times, units_kept
from kprune.report.html.markup import Child, Html, tag
from kprune.report.html.numbers import capital, percent, plain, scaled, signed, with_interval
from kprune.report.html.page import page
from kprune.report.html.sections import Data, changes_section, glance, quality, section, settings, verdict
from kprune.report.html.tables import Column, table
from kprune.report.sweep_table import marks_of, quality_of


def prune_page(data: Data, name: str, *, changes: Data | None = None, command: str = "") -> Html:
    """The page of `kprune prune`."""
    flops, parameters = data["flops"], data["parameters"]
    pairs = [("encoder FLOPs per input", *flops, "count"), ("parameters", *parameters, "count")]
    if "megabytes" in data:
        pairs.append(("weights", *data["megabytes"], "MB"))
    evaluation = data.get("evaluation")
    steps = [{**step, "kept": len(step["kept"])} for step in data["steps"]]
    sections = [
        glance(pairs),
        quality(evaluation) if evaluation else None,
        changes_section(changes),
        _layers_section(steps),
        settings(_settings_of(data), command, _facts(data)),
    ]
    deck = f"{_removed(flops)} {verdict(evaluation)}"
    return page("Pruned model", name, deck.strip(), sections)


def _removed(flops: Sequence[float]) -> str:
    return f"{percent(1 - flops[1] / flops[0], 1)} of the encoder’s FLOPs were removed."


def _layers_section(steps: Sequence[Data]) -> Html:
    return section("layers", "Layer by layer", units_kept("kept", steps), errors("errors", steps))


def _settings_of(data: Data) -> dict[str, Any]:
    """The settings among the entries of a record."""
    return {each.name: data[each.name] for each in fields(PruneConfig) if each.name in data}


def _facts(data: Data) -> list[tuple[str, str]]:
    """What is known of the run besides its settings."""
    facts = [("kprune", str(data["kprune"])), ("sample", f"{data['tokens']:,} tokens, {data['examples']:,} examples")]
    if "total_seconds" in data:
        facts.append(("seconds", plain(data["total_seconds"], 0)))
    if "peak_megabytes" in data:
        facts.append(("peak memory", f"{plain(data['peak_megabytes'], 0)} MB"))
    return facts


def folder_page(inspection: Data, name: str) -> Html:
    """The page of a model folder: what its config and record say."""
    shape, history = inspection["shape"], inspection["history"]
    last = history[-1] if history else {}
    places = [
        {"layer": layer, "kind": kind, "units": shape[f"dense_{units}"], "kept": kept[layer]}
        for layer in range(max(len(shape["heads"]), len(shape["neurons"])))
        for kind, units, kept in (("attention", "heads", shape["heads"]), ("ffn", "neurons", shape["neurons"]))
        if layer < len(kept)
    ]
    found: list[Any] = list(last.get("errors") or [])
    fits = len(found) == len(places)
    steps = [{**step, "error_before": None, "error_after": found[n] if fits else None} for n, step in enumerate(places)]
    pairs = [
        (f"encoder FLOPs at {plain(inspection['length'], 0)} tokens", *inspection["flops"], "count"),
        ("parameters", *inspection["parameters"], "count"),
    ]
    facts = [("runs", str(len(history))), ("on disk", f"{plain(inspection['bytes_on_disk'] / 1e6, 1)} MB")]
    sections = [glance(pairs), _layers_section(steps), settings(_settings_of(last), "", facts)]
    return page("Model folder", name, _removed(inspection["flops"]), sections)


def evaluation_page(data: Data, names: tuple[str, str], *, changes: Data | None = None, command: str = "") -> Html:
    """The page of `kprune evaluate`; the second name is empty without a second model."""
    ours, theirs = names
    title = f"{ours} against {theirs}" if theirs else ours
    facts = [("padding", percent(data["padding"], 1)), ("seconds", plain(data["seconds"], 1))]
    sections = [quality(data, names), changes_section(changes, names), settings({}, command, facts)]
    first = data["figures"][0] if data["figures"] else data["fidelity"][0]
    deck = f"{capital(first['name'])} {with_interval(first)} on {data['test']}, {data['examples']:,} examples."
    return page("Evaluation", title, deck, sections)


def bench_page(data: Data, *, command: str = "") -> Html:
    """The page of `kprune bench`."""
    timings = data["timings"]
    faster = [each for each in timings if each.get("speedup")]
    models = list(dict.fromkeys(each["model"] for each in timings))
    deck = f"On {data['device']}, {data['threads']} thread{'s' * (data['threads'] != 1)}."
    if faster:
        ratios = [each["speedup"] for each in faster]
        low, high = (f"{plain(each)}×" for each in (min(ratios), max(ratios)))
        span = low if low == high else f"{low} to {high}"
        deck = f"{span} as fast as {data['reference']}. {deck}"
    sections = [
        section("times", "Time", times("latency", timings)),
        _footprints(data["footprints"]) if data["footprints"] else None,
        *(tag("p", f"Note: {note}", class_="notes") for note in data["notes"]),
        settings({}, command, [("device", data["device"]), ("threads", str(data["threads"]))]),
    ]
    return page("Benchmark", " and ".join(models[:3]), deck, sections)


def _footprints(footprints: Sequence[Data]) -> Html:
    numbers = ("load s", "peak MB", "disk MB")
    columns = [Column("model"), Column("runtime"), *(Column(each, is_number=True) for each in numbers)]
    rows = [
        [
            each["model"],
            each["runtime"],
            plain(each["load_seconds"]),
            plain(each["peak_megabytes"], 0),
            plain(each["disk_megabytes"], 1),
        ]
        for each in footprints
    ]
    return section("footprints", "To load and hold", table("Load time, memory and size on disk", columns, rows))


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
    proposal = [tag("p", "To make this model:"), tag("pre", tag("code", command), class_="command", tabindex="0")]
    at = f"at {percent(shown['reduction'])}{', healed' if shown['healed'] else ''}"
    sections: list[Child] = [
        section("curve", "How much can be removed?", _sweep_figures(lines, points[place])),
        section("points", "All points", _points_table(lines, points[place])),
        section("proposal", f"The model {at}", proposal) if command else None,
        glance(pairs),
        quality(shown),
        changes_section(shown.get("changes")),
        _layers_section(steps),
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


def compare_page(runs: Sequence[Run], name: str, *, command: str = "") -> Html:
    """The page of `kprune compare`: a curve per task, a line per method."""
    tasks = list(dict.fromkeys(run["task"] for run in runs))
    methods = list(dict.fromkeys(run["method"] for run in runs))
    seeds = len({run["seed"] for run in runs})
    sections: list[Child] = [
        _task_section(number, task, [r for r in runs if r["task"] == task]) for number, task in enumerate(tasks)
    ]
    tokens = " and ".join(sorted({f"{run['tokens']:,}" for run in runs}))
    facts = [("runs", f"{len(runs):,}"), ("tokens of the sample", tokens), ("methods", ", ".join(methods))]
    sections.append(settings({}, command, facts))
    deck = f"{len(methods)} methods on {len(tasks)} task{'s' * (len(tasks) != 1)}, {seeds} seed{'s' * (seeds != 1)}."
    return page("Comparison", name, deck, sections)


def _task_section(number: int, task: str, runs: Sequence[Run]) -> Html:
    shown = by_method(default_runs(runs) or runs)
    name = metric_name(runs[0])
    series = []
    rows: list[list[Child]] = []
    for method, group in shown.items():
        by_reduction = mean_and_spread(group, lambda run: run["reduction"], metric)
        dots = [
            Dot(removed, value, value - spread, value + spread) for removed, (value, spread) in by_reduction.items()
        ]
        series.append(Series(method, dots))
        rows += [
            [method, percent(removed), f"{plain(value)} ± {plain(spread)}"]
            for removed, (value, spread) in by_reduction.items()
        ]
    columns = [Column("method"), Column("removed", is_number=True), Column(name, is_number=True)]
    dense = mean(float(run["against"][0]["value"]) for run in runs)
    content = curve(
        f"task-{number}-svg",
        f"{task}: {name} against FLOPs removed",
        series,
        labels=("encoder FLOPs removed", name),
        level=dense,
        x_text=percent,
        x_range=(0.0, 1.0),
    )
    caption = f"{capital(name)} on {task}: mean and standard deviation over seeds. The dashed line is the dense model."
    data = table(f"{task}: mean and standard deviation of {name}", columns, rows)
    return section(f"task-{number}", task, figure(f"task-{number}-figure", caption, content, data))
