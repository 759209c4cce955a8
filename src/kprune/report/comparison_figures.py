"""Figures of a comparison, as in the paper, from a results file. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from kprune.errors import KpruneError
from kprune.jobs.grid import parse_method
from kprune.report.comparison_runs import (
    ALLOWED_LOSS,
    Run,
    by_method,
    default_runs,
    dense_metric,
    finished_runs,
    mean_and_spread,
    metric,
    metric_name,
    seconds_alone,
    sweep_runs,
)
from kprune.report.comparison_tables import markdown_tables
from kprune.report.figures import save_figure

STYLES = [
    ("#0072B2", "o"),
    ("#E69F00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#56B4E9", "v"),
    ("#D55E00", "P"),
    ("#000000", "X"),
    ("#999999", "*"),
    ("#882255", "p"),
    ("#44AA99", "h"),
]
"""Colours of Okabe and Ito, then of Tol, each with its own marker: distinct for colour-blind readers and in grey."""
SWEPT = ("temperature", "rep_weight", "head_weight")
WIDE_TIMES = 20
"""A ratio of times above which their axis is logarithmic: retraining takes far longer."""
PANEL_WIDTH = 4.2
"""Inches."""

Panel = Callable[[Any, str, list[Run]], None]
"""Draws one task's runs into matplotlib axes: (axes, task, runs)."""


def plot_comparison(path: Path, folder: Path, ending: str = "png") -> list[Path]:
    """Write each figure that the results file has runs for, and `tables.md`; return the paths."""
    runs = finished_runs(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KpruneError(f"{folder} cannot be a folder ({error.strerror}); choose another.") from error
    figures: list[tuple[str, Callable[[Sequence[Run], Path], None], list[Run]]] = [
        ("reduction", draw_reduction, default_runs(runs)),
        ("time", draw_time, default_runs(runs)),
        ("criteria", draw_reduction, sweep_runs(runs, "criterion")),
        ("kept", draw_kept, [run for run in runs if run.get("units")]),
        *((f"sensitivity-{name}", partial(draw_sensitivity, option=name), sweep_runs(runs, name)) for name in SWEPT),
    ]
    written = []
    for name, draw, chosen in figures:
        if chosen:
            written.append(folder / f"{name}.{ending}")
            draw(chosen, written[-1])
    written.append(folder / "tables.md")
    written[-1].write_text(markdown_tables(runs), encoding="utf-8")
    return written


def draw_reduction(runs: Sequence[Run], path: Path) -> None:
    """Draw the metric over the FLOPs removed, with the dense metric and three points below it (Figure 1)."""
    methods = list(by_method(runs))

    def panel(axes: Any, task: str, chosen: list[Run]) -> None:
        for method, group in by_method(chosen).items():
            points = mean_and_spread(group, lambda run: 100 * run["reduction"], metric)
            _draw_points(axes, points, methods.index(method), method)
        level = dense_metric(chosen[0])
        axes.axhline(level, color="#555555", linewidth=1, label="dense")
        axes.axhline(level - ALLOWED_LOSS, color="#555555", linewidth=1, linestyle="--", label="3 points lost")
        axes.set_xlabel("FLOPs removed (%)")
        axes.set_ylabel(metric_name(chosen[0]))
        axes.set_title(task)

    _draw_panels(runs, path, panel)


def draw_time(runs: Sequence[Run], path: Path) -> None:
    """Draw the metric at the largest reduction over the seconds of pruning (Figure 3)."""
    methods = list(by_method(runs))
    taken = [run["prune_seconds"] for run in runs]
    is_wide = max(taken) > WIDE_TIMES * min(taken) > 0

    def panel(axes: Any, task: str, chosen: list[Run]) -> None:
        reduction = max(run["reduction"] for run in chosen)
        for method, group in by_method(run for run in chosen if run["reduction"] == reduction).items():
            seconds = seconds_alone(group, by_method(chosen)[method])
            point = mean_and_spread(group, lambda run: 0, metric)[0]
            _draw_points(axes, {seconds: point}, methods.index(method), method, linestyle="")
        axes.set_xscale("log") if is_wide else axes.set_xlim(left=0)
        axes.set_xlabel("seconds to prune")
        axes.set_ylabel(metric_name(chosen[0]))
        axes.set_title(f"{task}, {reduction:.0%} removed")

    _draw_panels(runs, path, panel)


def draw_sensitivity(runs: Sequence[Run], path: Path, option: str) -> None:
    """Draw the metric over the values of one of K-prune's options, one line per reduction (the paper's appendix)."""
    _draw_by_reduction(runs, path, lambda run: parse_method(run["method"])[1][option], metric, option)


def draw_sample_sizes(runs: Sequence[Run], path: Path) -> None:
    """Draw the points lost over the tokens of the sample, one line per reduction."""

    def points_lost(run: Run) -> float:
        return dense_metric(run) - metric(run)

    _draw_by_reduction(runs, path, lambda run: run["tokens"], points_lost, "tokens of the sample", "points lost")


def _draw_by_reduction(
    runs: Sequence[Run],
    path: Path,
    setting: Callable[[Run], Any],
    value: Callable[[Run], float],
    label: str,
    value_label: str | None = None,
) -> None:
    """Draw a value over the settings that occur, evenly spaced in ascending order; a line per reduction."""
    reductions = sorted({run["reduction"] for run in runs})

    def panel(axes: Any, task: str, chosen: list[Run]) -> None:
        settings = sorted({setting(run) for run in chosen})
        for number, reduction in enumerate(reductions):
            group = [run for run in chosen if run["reduction"] == reduction]
            if group:
                points = mean_and_spread(group, lambda run: settings.index(setting(run)), value)
                _draw_points(axes, points, number, f"{reduction:.0%} removed")
        names = [f"{each:,}" if isinstance(each, int) else f"{each:g}" for each in settings]
        axes.set_xticks(range(len(settings)), names, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
        axes.set_xlabel(label)
        axes.set_ylabel(value_label or metric_name(chosen[0]))
        axes.set_title(task)

    _draw_panels(runs, path, panel)


def draw_kept(runs: Sequence[Run], path: Path) -> None:
    """Draw the percentage of units kept, a row per method and a column per sublayer.

    The reduction is the largest that all methods of the task were run at.
    """

    def panel(axes: Any, task: str, chosen: list[Run]) -> None:
        reduction = _largest_common_reduction(chosen)
        methods = by_method(run for run in chosen if run["reduction"] == reduction)
        shares = [[mean(of) for of in zip(*map(_shares_kept, group), strict=True)] for group in methods.values()]
        _draw_heatmap(axes, shares)
        axes.set_yticks(range(len(methods)), [name.replace("kprune ", "") for name in methods], fontsize=8)
        names = [f"{number // 2} {'FFN' if number % 2 else 'heads'}" for number in range(len(shares[0]))]
        axes.set_xticks(range(len(names)), names)
        axes.tick_params(axis="x", rotation=90, labelsize=7)
        axes.set_title(f"{task}, {reduction:.0%} removed: % kept", fontsize=10)
        axes.grid(visible=False)

    _draw_panels(runs, path, panel, columns=2, has_legend=False)


def _largest_common_reduction(runs: Sequence[Run]) -> float:
    by_reduction = [{run["reduction"] for run in group} for group in by_method(runs).values()]
    return float(max(set.intersection(*by_reduction) or set.union(*by_reduction)))


def _shares_kept(run: Run) -> list[float]:
    return [kept / units for kept, units in zip(run["kept"], run["units"], strict=True)]


def _draw_heatmap(axes: Any, shares: Sequence[Sequence[float]]) -> None:
    brightest = max(max(row) for row in shares) or 1.0
    axes.imshow(shares, cmap="cividis", vmin=0, vmax=brightest, aspect="auto")
    for y, row in enumerate(shares):
        for x, share in enumerate(row):
            colour = "white" if share < 0.6 * brightest else "black"
            axes.text(x, y, f"{100 * share:.0f}", color=colour, ha="center", va="center", fontsize=6)


def _draw_points(
    axes: Any, points: dict[Any, tuple[float, float]], style: int, label: str, linestyle: str = "-"
) -> None:
    """Draw {x: (mean, spread)} with error bars."""
    colour, marker = STYLES[style % len(STYLES)]
    values, spreads = zip(*points.values(), strict=True)
    axes.errorbar(
        list(points), values, spreads, color=colour, marker=marker, capsize=2, label=label, linestyle=linestyle
    )


def _draw_panels(runs: Sequence[Run], path: Path, draw: Panel, *, columns: int = 3, has_legend: bool = True) -> None:
    """Draw one panel per task and save the figure."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(run["task"] for run in runs))
    columns = min(2 if len(tasks) == 4 else columns, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = Figure(figsize=(PANEL_WIDTH * columns, 3.6 * rows + 0.5), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, task in zip(panels, tasks, strict=False):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        draw(axes, task, [run for run in runs if run["task"] == task])
    for axes in panels[len(tasks) :]:
        axes.set_visible(False)
    if has_legend:
        _add_legend(figure, PANEL_WIDTH * columns)
    save_figure(figure, path)


def _add_legend(figure: Any, width: float) -> None:
    """Add one legend for all panels below them, in as many columns as fit `width` inches."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    columns = width / (0.7 + 0.085 * max(map(len, handles)))  # by the longest label
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=max(1, int(columns)), frameon=False
    )
