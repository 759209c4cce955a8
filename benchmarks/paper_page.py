"""The page of `benchmarks/paper.py`: the paper's tables and figures beside those of the lines that exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from statistics import mean
from typing import Any

from kprune.jobs.results import read_results, read_runs
from kprune.report.comparison_figures import draw_reduction, draw_sensitivity, draw_time
from kprune.report.comparison_runs import Run, dense_metric, mean_and_spread, metric, metric_name
from kprune.report.figures import save_figure

PAPER_DENSE = {
    "mrpc": 87.01,
    "qqp": 91.54,
    "sst2": 93.12,
    "stsb": 89.08,
    "mnli": 84.90,
    "qnli": 91.87,
    "squad": 88.51,
    "squad2": 76.54,
}
"""BERT-base of the paper, not pruned."""
PAPER_SPEED = {
    "kcm": {"mrpc": 1.08, "stsb": 1.23, "squad": 1.20, "squad2": 1.08},
    "kwon": {"mrpc": 1.59, "stsb": 2.10, "squad": 2.09, "squad2": 1.75},
    "kprune": {"mrpc": 2.66, "stsb": 2.43, "squad": 2.60, "squad2": 2.93},
}
"""Table 1 of the paper, on its GPU."""
PAPER_ABLATIONS = {
    "kprune": {"mrpc": 84.80, "squad": 74.16},
    "kprune criterion=gradient": {"mrpc": 84.07, "squad": 72.55},
    "kprune search=uniform": {"mrpc": 81.71, "squad": 67.10},
    "kprune refit=no": {"mrpc": 68.38, "squad": 16.50},
}
"""Table 2 of the paper: 80 % removed."""
RETRAINING = ("dynabert",)
HEAD = """# The paper's tables and figures

`python benchmarks/paper.py` ran the grids and wrote this page; the lines are in `benchmarks/results/paper`. Each line
has its settings, seed and commit.

What differs from the paper: the models are 6-layer MiniLMs (22.7 M parameters, a fifth of BERT-base), fine-tuned on
parts of the training splits by `benchmarks/finetune.py`. Samples have 100,000 tokens, or all that the training data
have. Figures are on whole validation splits as far as the data hold them; the runs were made on CPUs. `kprune` stands
for the default criterion, `kprune criterion=released` for the authors' scales. KCM cannot remove heads, and has no
models at large reductions. EBERT is not implemented. Figures are means and standard deviations over seeds.
"""

Parts = Mapping[str, Sequence[Any]]
Section = Callable[[list[Run], Path], list[str]]


def write_page(page: Path, results: Path, parts: Parts) -> None:
    """Write the page and its pictures from the lines in a folder."""
    page.parent.mkdir(parents=True, exist_ok=True)
    runs = {part: [run for run in read_runs(results / f"{part}.jsonl") if "error" not in run] for part in parts}
    every = [run for group in runs.values() for run in group]
    text = [HEAD, *dense_models(every)]
    for part, (title, section) in SECTIONS.items():
        text += [f"## {title}", ""]
        found = runs[part] + (runs["figure1"] if part == "rivals" else [])
        if part == "table1":
            text += speed_table(read_results(results / "speed.jsonl"))
        if found:
            text += [*section(found, page), ""]
        text += [missing(runs[part], parts[part]), ""]
    page.write_text("\n".join(text), encoding="utf-8")


def groups_of(runs: Iterable[Run], *names: str) -> dict[tuple[Any, ...], list[Run]]:
    """The runs by the values of some fields, in order of appearance."""
    found: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        found.setdefault(tuple(run[name] for name in names), []).append(run)
    return found


def spread(runs: Sequence[Run]) -> str:
    if not runs:
        return "–"
    average, deviation = mean_and_spread(runs, lambda run: 0, metric)[0]
    return f"{average:.2f} ± {deviation:.2f}" if len(runs) > 1 else f"{average:.2f}"


def row(cells: Iterable[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    return [row(heading), "|" + "---|" * len(heading), *map(row, rows)]


def missing(runs: Sequence[Run], pieces: Sequence[Any]) -> str:
    """One sentence about the cells of a part that have no line yet."""
    names = ("task", "method", "reduction", "seed", "tokens")
    done = {tuple(run[name] for name in names) for run in runs}
    lacking: dict[tuple[str, str], int] = {}
    for piece in pieces:
        for task in piece.tasks:
            for method in piece.methods:
                cells = {(task, method, r, seed, piece.tokens) for r in piece.reductions for seed in piece.seeds}
                if cells - done:
                    lacking[task, method] = lacking.get((task, method), 0) + len(cells - done)
    if not lacking:
        return "All runs of this part are there."
    by_task: dict[str, list[str]] = {}
    for (task, method), count in lacking.items():
        by_task.setdefault(task, []).append(f"{method} ({count})")
    listed = "; ".join(f"{task}: {', '.join(methods)}" for task, methods in by_task.items())
    return f"Missing or failed runs, {sum(lacking.values())} in all: {listed}."


def dense_models(runs: Sequence[Run]) -> list[str]:
    """The dense models' metrics beside those of the paper."""
    dense = {run["task"]: run for run in runs}
    rows = [
        (task, metric_name(dense[task]), f"{dense_metric(dense[task]):.2f}", f"{PAPER_DENSE[task]:.2f}")
        for task in PAPER_DENSE
        if task in dense
    ]
    return [*table(("task", "metric", "dense here", "BERT-base of the paper"), rows), ""] if rows else []


def accuracy_tables(runs: list[Run], page: Path, *, name: str = "figure1") -> list[str]:
    """A picture, and a row per task and reduction with a column per method."""
    picture = page.with_name(f"{page.stem}-{name}.png")
    draw_reduction(runs, picture)
    methods = [method for (method,) in groups_of(runs, "method")]
    cells = groups_of(runs, "task", "reduction", "method")
    rows = [
        (task, f"{reduction:.0%}", *(spread(cells.get((task, reduction, method), [])) for method in methods))
        for task, reduction in sorted(groups_of(runs, "task", "reduction"))
    ]
    text = [f"![metric against FLOPs removed]({picture.name})", "", *table(("task", "removed", *methods), rows), ""]
    return [*text, *lead_table(runs)]


def lead_table(runs: Sequence[Run]) -> list[str]:
    """By how much the default criterion leads the best rival without retraining, at the largest reduction."""
    rows = []
    for (task,), group in groups_of(runs, "task").items():
        reduction = max(run["reduction"] for run in group)
        by_method = groups_of([run for run in group if run["reduction"] == reduction], "method")
        rivals = {
            method: chosen
            for (method,), chosen in by_method.items()
            if not method.startswith(("kprune", *RETRAINING)) and chosen
        }
        ours = by_method.get(("kprune",))
        if not ours or not rivals:
            continue
        best = max(rivals, key=lambda method: mean(map(metric, rivals[method])))
        low = mean(run["figures"][0]["low"] for run in ours)
        high = mean(run["figures"][0]["high"] for run in rivals[best])
        lead = mean(map(metric, ours)) - mean(map(metric, rivals[best]))
        rows.append((task, f"{reduction:.0%}", best, f"{lead:+.2f}", "yes" if low > high else "no"))
    heading = ("task", "removed", "best rival without retraining", "lead of kprune", "beyond the 95 % intervals")
    return table(heading, rows) if rows else []


def speed_table(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Table 1: measured speed-ups of the fastest models within three points, and the paper's."""
    if not lines:
        return ["No speed-up was measured yet (`--part speed`).", ""]
    tasks = list(PAPER_SPEED["kprune"])
    rows = []
    for (method, runtime), group in groups_of(map(dict, lines), "method", "runtime").items():
        of_task = {line["task"]: float(line["speedup"]) for line in group}
        rows.append((method, runtime, *speed_cells(of_task, tasks)))
    rows += [(method, "paper's GPU", *speed_cells(speeds, tasks)) for method, speeds in PAPER_SPEED.items()]
    text = "Fastest model with less than 3 points lost, batch 32, the task's mean length; – is none, or not measured."
    return [text, "", *table(("method", "runtime", *tasks, "geometric mean"), rows), ""]


def speed_cells(speeds: Mapping[str, float], tasks: Sequence[str]) -> list[str]:
    found = [speeds[task] for task in tasks if task in speeds]
    cells = [f"{speeds[task]:.2f}×" if task in speeds else "–" for task in tasks]
    return [*cells, f"{prod(found) ** (1 / len(found)):.2f}×" if len(found) == len(tasks) else "–"]


def loss_table(runs: list[Run], page: Path) -> list[str]:
    """The largest reduction of each task and method with less than three points lost."""
    tasks = [task for (task,) in groups_of(runs, "task")]
    cells = groups_of(runs, "method", "task")
    rows = []
    for (method,) in groups_of(runs, "method"):
        best = []
        for task in tasks:
            by_reduction = groups_of(cells.get((method, task), []), "reduction")
            good = [r for (r,), group in by_reduction.items() if mean(dense_metric(x) - metric(x) for x in group) < 3]
            best.append(f"{max(good):.0%}" if good else "–")
        rows.append((method, *best))
    return ["Largest reduction of those with less than 3 points lost:", "", *table(("method", *tasks), rows)]


def ablation_table(runs: list[Run], page: Path) -> list[str]:
    """Table 2, ours and the paper's."""
    cells = groups_of(runs, "method", "task")
    rows = [
        (method, *(part for task in paper for part in (spread(cells.get((method, task), [])), f"{paper[task]:.2f}")))
        for method, paper in PAPER_ABLATIONS.items()
    ]
    return table(("80 % removed", "mrpc", "mrpc, paper", "squad", "squad, paper"), rows)


def sensitivity(option: str) -> Section:
    """A picture of the metric over one option of `criterion=released`."""

    def section(runs: list[Run], page: Path) -> list[str]:
        picture = page.with_name(f"{page.stem}-{option.replace('_', '-')}.png")
        draw_sensitivity(runs, picture, option)
        return [f"![metric over {option}]({picture.name})"]

    return section


def sample_sizes(runs: list[Run], page: Path) -> list[str]:
    """A picture and a table of the points lost over the tokens of the sample."""
    from matplotlib.figure import Figure

    picture = page.with_name(f"{page.stem}-samples.png")
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    rows = []
    for (task, reduction), group in groups_of(runs, "task", "reduction").items():
        points = mean_and_spread(group, lambda run: run["tokens"], lambda run: dense_metric(run) - metric(run))
        averages, deviations = zip(*points.values(), strict=True)
        axes.errorbar(list(points), averages, deviations, marker="o", capsize=2, label=f"{task}, {reduction:.0%}")
        rows += [(task, f"{reduction:.0%}", f"{n:,}", f"{a:.2f} ± {d:.2f}") for n, (a, d) in points.items()]
    axes.set_xscale("log")
    axes.set_xlabel("tokens of the sample")
    axes.set_ylabel("points lost")
    axes.legend(frameon=False)
    save_figure(figure, picture)
    return [f"![points lost over tokens]({picture.name})", "", *table(("task", "removed", "tokens", "lost"), rows)]


def time_figure(runs: list[Run], page: Path) -> list[str]:
    """Figure 3: a picture, and a row per task and method with the seconds."""
    picture = page.with_name(f"{page.stem}-figure3.png")
    draw_time(runs, picture)
    rows = [
        (task, method, f"{dense_metric(group[0]):.2f}", spread(group), f"{mean(x['prune_seconds'] for x in group):.0f}")
        for (task, method), group in groups_of(runs, "task", "method").items()
    ]
    heading = ("task", "75 % removed", "dense", "accuracy", "seconds")
    return [f"![accuracy against time]({picture.name})", "", *table(heading, rows)]


SECTIONS: dict[str, tuple[str, Section]] = {
    "figure1": ("Figure 1: accuracy of pruned models", accuracy_tables),
    "rivals": ("Further rivals without retraining", partial(accuracy_tables, name="rivals")),
    "table1": ("Table 1: speed within three points", loss_table),
    "table2": ("Table 2: ablations", ablation_table),
    "temperature": ("Appendix: temperature γ", sensitivity("temperature")),
    "rep_weight": ("Appendix: weight λ of representational knowledge", sensitivity("rep_weight")),
    "head_weight": ("Appendix: weight μ of heads", sensitivity("head_weight")),
    "samples": ("Size of the sample", sample_sizes),
    "figure3": ("Figure 3: accuracy against time", time_figure),
}
