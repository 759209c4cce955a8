"""Markdown tables of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from kprune.report.comparison_runs import (
    ALLOWED_LOSS,
    Run,
    by_method,
    default_runs,
    dense_metric,
    mean_and_spread,
    metric,
    metric_name,
)

ABLATIONS = ("kprune", "kprune criterion=gradient", "kprune search=uniform", "kprune refit=no")


def markdown_tables(runs: Sequence[Run]) -> str:
    """Return all figures, the best FLOPs ratio within the allowed loss, and the ablations, as Markdown."""
    parts = [_figures_table(runs), _best_ratio_table(default_runs(runs)), _ablations_table(runs)]
    return "\n".join(part for part in parts if part)


def _with_spread(value: float, spread: float, runs: int) -> str:
    return f"{value:.2f} ± {spread:.2f}" if runs > 1 else f"{value:.2f}"


def _figures_table(runs: Sequence[Run]) -> str:
    text = [
        "Mean ± standard deviation over seeds. Seconds are less where a run reused passes of another reduction.",
        "",
    ]
    text += ["| task | removed | method | metric | runs | alike | seconds |", "|---|---|---|---|---|---|---|"]
    groups: dict[tuple[str, float, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run["task"], run["reduction"], run["method"]), []).append(run)
    for (task, reduction, method), group in sorted(groups.items(), key=lambda item: item[0][:2]):
        value, spread = mean_and_spread(group, lambda run: 0, metric)[0]
        alike = mean(run["fidelity"][0]["value"] for run in group)
        seconds = mean(run["prune_seconds"] for run in group)
        text.append(
            f"| {task} | {reduction:.0%} | {method} | {metric_name(group[0])} "
            f"{_with_spread(value, spread, len(group))} (dense {dense_metric(group[0]):.2f}) "
            f"| {len(group)} | {alike:.1f} | {seconds:.0f} |"
        )
    return "\n".join([*text, ""])


def _best_ratio_table(runs: Sequence[Run]) -> str:
    """Return the largest FLOPs ratio run at which the mean loses less than three points (Table 1)."""
    tasks = list(dict.fromkeys(run["task"] for run in runs))
    text = [f"Largest FLOPs ratio with less than {ALLOWED_LOSS:g} points lost, of the reductions that were run.", ""]
    text += [f"| method | {' | '.join(tasks)} |", f"|---|{'---|' * len(tasks)}"]
    for method, group in by_method(runs).items():
        cells = [_best_ratio([run for run in group if run["task"] == task]) for task in tasks]
        text.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join([*text, ""])


def _best_ratio(runs: Sequence[Run]) -> str:
    lost = mean_and_spread(runs, lambda run: run["reduction"], lambda run: dense_metric(run) - metric(run))
    good = [reduction for reduction, (value, _) in lost.items() if value < ALLOWED_LOSS]
    return f"{1 / (1 - max(good)):.2f}×" if good else "–"


def _ablations_table(runs: Sequence[Run]) -> str:
    chosen = [run for run in runs if run["method"] in ABLATIONS]
    if len({run["method"] for run in chosen}) < 2:
        return ""
    columns = sorted({(run["task"], run["reduction"]) for run in chosen if run["method"] != "kprune"})
    headings = [f"{task}, {reduction:.0%}" for task, reduction in columns]
    text = ["K-prune without one of its ideas.", "", f"| | {' | '.join(headings)} |", f"|---|{'---|' * len(headings)}"]
    for method, group in by_method(chosen).items():
        points = mean_and_spread(group, lambda run: (run["task"], run["reduction"]), metric)
        counts = {key: sum((run["task"], run["reduction"]) == key for run in group) for key in columns}
        cells = [_with_spread(*points[key], counts[key]) if key in points else "–" for key in columns]
        text.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join([*text, ""])
