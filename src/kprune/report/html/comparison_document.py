"""The page of `kprune compare`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from kprune.report.comparison_runs import Run, by_method, default_runs, mean_and_spread, metric, metric_name
from kprune.report.html.figures import Dot, Series, curve, figure
from kprune.report.html.markup import Child, Html
from kprune.report.html.numbers import capital, percent, plain
from kprune.report.html.page import page
from kprune.report.html.sections import section, settings
from kprune.report.html.tables import Column, table


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
