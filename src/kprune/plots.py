"""Pictures and tables of a comparison, from its results file: the paper's figures, redrawn from one's own runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from kprune.compare import parse_method, read_runs
from kprune.errors import KpruneError
from kprune.report import BARE

Line = dict[str, Any]

# Okabe and Ito's colours and different marks: told apart by the colour-blind, and in grey.
STYLES = [
    ("#0072B2", "o"),
    ("#E69F00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#56B4E9", "v"),
    ("#D55E00", "P"),
    ("#000000", "X"),
    ("#999999", "*"),
]
ALLOWED_LOSS = 3.0
"""Points that the paper lets a model lose when it looks for the best speed-up."""
SWEPT = ("temperature", "rep_weight", "head_weight")
ABLATIONS = ("kprune", "kprune criterion=gradient", "kprune search=uniform", "kprune refit=no")


def plot(path: Path, folder: Path, ending: str = "png") -> list[Path]:
    """Draw everything that a results file has the runs for, and write the tables; the files that were written."""
    lines = [line for line in read_runs(path) if "error" not in line]
    if not lines:
        raise KpruneError(f"{path} has no finished run to draw; run kprune compare first.")
    _require_alike(lines, path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KpruneError(f"{folder} cannot be a folder ({error.strerror}); choose another.") from error
    drawn = [
        ("reduction", draw_reduction, _whole_methods(lines)),
        ("time", draw_time, _whole_methods(lines)),
        ("criteria", draw_reduction, _sweep(lines, "criterion")),
        ("kept", draw_kept, [line for line in lines if line.get("units")]),
        *((f"sensitivity-{knob}", _sensitivity(knob), _sweep(lines, knob)) for knob in SWEPT),
    ]
    written = []
    for name, draw, chosen in drawn:
        if chosen:
            written.append(folder / f"{name}.{ending}")
            draw(chosen, written[-1])
    written.append(folder / "tables.md")
    written[-1].write_text(tables(lines), encoding="utf-8")
    return written


def _require_alike(lines: Sequence[Line], path: Path) -> None:
    """Refuse to average runs that differ in more than their seed."""
    for task in {line["task"] for line in lines}:
        for name in ("model", "tokens", "limit"):
            found = {line.get(name) for line in lines if line["task"] == task}
            if len(found) > 1:
                told = " and ".join(sorted(map(str, found)))
                raise KpruneError(f"{path} mixes runs of {task} with {name} {told}; put them into files of their own.")


def _whole_methods(lines: Sequence[Line]) -> list[Line]:
    """Runs of methods as they are, without knobs."""
    return [line for line in lines if " " not in line["method"]]


def _sweep(lines: Sequence[Line], knob: str) -> list[Line]:
    """Runs that turn one knob and no other, where there are several."""
    chosen = [line for line in lines if set(parse_method(line["method"])[1]) == {knob}]
    return chosen if len({line["method"] for line in chosen}) > 1 else []


def by_method(lines: Iterable[Line]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line["method"], []).append(line)
    return found


def summary(
    lines: Iterable[Line], key: Callable[[Line], Any], value: Callable[[Line], float]
) -> dict[Any, tuple[float, float]]:
    """Mean over seeds and its spread (standard deviation; 0 of one run), by key."""
    found: dict[Any, list[float]] = {}
    for line in lines:
        found.setdefault(key(line), []).append(value(line))
    return {name: (mean(each), stdev(each) if len(each) > 1 else 0.0) for name, each in sorted(found.items())}


def metric(line: Line) -> float:
    """The figure that counts."""
    return float(line["figures"][0]["value"])


def dense(line: Line) -> float:
    return float(line["against"][0]["value"])


def _panels(
    lines: Sequence[Line],
    path: Path,
    draw: Callable[[Any, str, list[Line]], None],
    *,
    columns: int = 3,
    has_legend: bool = True,
) -> None:
    """A panel per task."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(line["task"] for line in lines))
    columns = 2 if len(tasks) == 4 else columns
    rows = -(-len(tasks) // columns)
    wide = min(columns, len(tasks))
    figure = Figure(figsize=(4.2 * wide, 3.6 * rows + 0.5), layout="constrained")
    axes = list(figure.subplots(rows, wide, squeeze=False).flat)
    for panel, task in zip(axes, tasks, strict=False):
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.3)
        draw(panel, task, [line for line in lines if line["task"] == task])
    for panel in axes[len(tasks) :]:
        panel.set_visible(False)
    handles: dict[str, Any] = {}
    if not has_legend:
        figure.savefig(path, dpi=130, metadata=BARE[path.suffix])
        return
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    room = 4.2 * wide / (0.7 + 0.085 * max(map(len, handles)))  # inches, by what the longest name takes
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=max(1, int(room)), frameon=False)
    figure.savefig(path, dpi=130, metadata=BARE[path.suffix])


def draw_reduction(lines: Sequence[Line], path: Path) -> None:
    """The metric against the FLOPs removed, with the dense figure and the line three points below (Figure 1)."""
    methods = list(by_method(lines))

    def panel(axes: Any, task: str, chosen: list[Line]) -> None:
        for method, runs in by_method(chosen).items():
            colour, mark = STYLES[methods.index(method) % len(STYLES)]
            points = summary(runs, lambda line: 100 * line["reduction"], metric)
            values, spreads = zip(*points.values(), strict=True)
            axes.errorbar(list(points), values, spreads, color=colour, marker=mark, capsize=2, label=method)
        level = dense(chosen[0])
        axes.axhline(level, color="#555555", linewidth=1, label="dense")
        axes.axhline(level - ALLOWED_LOSS, color="#555555", linewidth=1, linestyle="--", label="3 points lost")
        axes.set_xlabel("FLOPs removed (%)")
        axes.set_ylabel(chosen[0]["figures"][0]["name"])
        axes.set_title(task)

    _panels(lines, path, panel)


def draw_time(lines: Sequence[Line], path: Path) -> None:
    """The metric at the largest reduction against the time that pruning took (Figure 3)."""
    methods = list(by_method(lines))

    def panel(axes: Any, task: str, chosen: list[Line]) -> None:
        at = max(line["reduction"] for line in chosen)
        for method, runs in by_method(line for line in chosen if line["reduction"] == at).items():
            colour, mark = STYLES[methods.index(method) % len(STYLES)]
            seconds = mean(line["prune_seconds"] for line in runs)
            value, spread = summary(runs, lambda line: 0, metric)[0]
            axes.errorbar(
                [seconds], [value], [spread], color=colour, marker=mark, capsize=2, label=method, linestyle=""
            )
        axes.set_xlim(left=0)
        axes.set_xlabel("seconds to prune")
        axes.set_ylabel(chosen[0]["figures"][0]["name"])
        axes.set_title(f"{task}, {at:.0%} removed")

    _panels(lines, path, panel)


def draw_kept(lines: Sequence[Line], path: Path) -> None:
    """The share of its units that each sublayer kept, at the largest reduction that all methods share: a row each."""

    def panel(axes: Any, task: str, chosen: list[Line]) -> None:
        of_methods = [{line["reduction"] for line in runs} for runs in by_method(chosen).values()]
        at = max(set.intersection(*of_methods) or set.union(*of_methods))
        methods = by_method(line for line in chosen if line["reduction"] == at)
        shares = [[mean(of) for of in zip(*map(_shares_kept, runs), strict=True)] for runs in methods.values()]
        brightest = max(max(of_method) for of_method in shares) or 1.0
        axes.imshow(shares, cmap="cividis", vmin=0, vmax=brightest, aspect="auto")
        for row, of_method in enumerate(shares):
            for column, share in enumerate(of_method):
                colour = "white" if share < 0.6 * brightest else "black"
                axes.text(column, row, f"{100 * share:.0f}", color=colour, ha="center", va="center", fontsize=6)
        axes.set_yticks(range(len(methods)), [name.replace("kprune ", "") for name in methods], fontsize=8)
        names = [f"{number // 2} {'FFN' if number % 2 else 'heads'}" for number in range(len(shares[0]))]
        axes.set_xticks(range(len(names)), names)
        axes.tick_params(axis="x", rotation=90, labelsize=7)
        axes.set_title(f"{task}, {at:.0%} removed: % kept", fontsize=10)
        axes.grid(visible=False)

    _panels(lines, path, panel, columns=2, has_legend=False)


def _shares_kept(line: Line) -> list[float]:
    return [kept / units for kept, units in zip(line["kept"], line["units"], strict=True)]


def _sensitivity(knob: str) -> Callable[[Sequence[Line], Path], None]:
    def draw(lines: Sequence[Line], path: Path) -> None:
        """The metric against one of K-prune's knobs, a line per reduction (the paper's appendix)."""
        reductions = sorted({line["reduction"] for line in lines})

        def panel(axes: Any, task: str, chosen: list[Line]) -> None:
            for reduction in reductions:
                runs = [line for line in chosen if line["reduction"] == reduction]
                if runs:
                    colour, mark = STYLES[reductions.index(reduction) % len(STYLES)]
                    points = summary(runs, lambda line: parse_method(line["method"])[1][knob], metric)
                    values, spreads = zip(*points.values(), strict=True)
                    axes.errorbar(
                        list(points),
                        values,
                        spreads,
                        color=colour,
                        marker=mark,
                        capsize=2,
                        label=f"{reduction:.0%} removed",
                    )
            axes.set_xscale("symlog", linthresh=1e-6) if knob == "rep_weight" else axes.set_xscale("log")
            axes.set_xlabel(knob)
            axes.set_ylabel(chosen[0]["figures"][0]["name"])
            axes.set_title(task)

        _panels(lines, path, panel)

    return draw


def tables(lines: Sequence[Line]) -> str:
    """The same as Markdown: every figure, the best speed-up within three points, the ablations."""
    parts = [_every_figure(lines), _best_speed_up(_whole_methods(lines)), _ablations(lines)]
    return "\n".join(part for part in parts if part)


def _told(value: float, spread: float, runs: int) -> str:
    return f"{value:.2f} ± {spread:.2f}" if runs > 1 else f"{value:.2f}"


def _every_figure(lines: Sequence[Line]) -> str:
    text = ["Mean ± standard deviation over seeds.", ""]
    text += ["| task | removed | method | metric | runs | alike | seconds |", "|---|---|---|---|---|---|---|"]
    keys = list(dict.fromkeys((line["task"], line["reduction"], line["method"]) for line in lines))
    for task, reduction, method in sorted(keys, key=lambda key: (key[0], key[1])):
        runs = [
            line for line in lines if (line["task"], line["reduction"], line["method"]) == (task, reduction, method)
        ]
        value, spread = summary(runs, lambda line: 0, metric)[0]
        alike = mean(line["fidelity"][0]["value"] for line in runs)
        seconds = mean(line["prune_seconds"] for line in runs)
        name = runs[0]["figures"][0]["name"]
        text.append(
            f"| {task} | {reduction:.0%} | {method} | {name} {_told(value, spread, len(runs))} "
            f"(dense {dense(runs[0]):.2f}) | {len(runs)} | {alike:.1f} | {seconds:.0f} |"
        )
    return "\n".join([*text, ""])


def _best_speed_up(lines: Sequence[Line]) -> str:
    """The largest ratio of FLOPs, of those tried, at which the mean loses less than three points (Table 1)."""
    tasks = list(dict.fromkeys(line["task"] for line in lines))
    text = [f"Largest FLOPs ratio with less than {ALLOWED_LOSS:g} points lost, of the reductions that were run.", ""]
    text += [f"| method | {' | '.join(tasks)} |", f"|---|{'---|' * len(tasks)}"]
    for method, runs in by_method(lines).items():
        cells = []
        for task in tasks:
            chosen = [line for line in runs if line["task"] == task]
            lost = summary(chosen, lambda line: line["reduction"], lambda line: dense(line) - metric(line))
            good = [reduction for reduction, (value, _) in lost.items() if value < ALLOWED_LOSS]
            cells.append(f"{1 / (1 - max(good)):.2f}×" if good else "–")
        text.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join([*text, ""])


def _ablations(lines: Sequence[Line]) -> str:
    chosen = [line for line in lines if line["method"] in ABLATIONS]
    if len({line["method"] for line in chosen}) < 2:
        return ""
    ablated = {(line["task"], line["reduction"]) for line in chosen if line["method"] != "kprune"}
    columns = sorted(ablated)
    heads = [f"{task}, {reduction:.0%}" for task, reduction in columns]
    text = ["K-prune without one of its ideas.", "", f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for method, runs in by_method(chosen).items():
        points = summary(runs, lambda line: (line["task"], line["reduction"]), metric)
        count = {key: sum((line["task"], line["reduction"]) == key for line in runs) for key in columns}
        cells = [_told(*points[key], count[key]) if key in points else "–" for key in columns]
        text.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join([*text, ""])
