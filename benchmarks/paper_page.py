"""The page of `benchmarks/paper.py`: the paper's tables and figures beside those of the lines that exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from statistics import mean
from typing import Any

from paper_reference import ABLATIONS, BERT, DISTILBERT, OPT, SAYS, SPEED
from paper_runs import Found, cells_of, found_in, open_cells

from kprune.jobs.results import read_results
from kprune.report.comparison_figures import draw_reduction, draw_sample_sizes, draw_sensitivity, draw_time
from kprune.report.comparison_runs import (
    ALLOWED_LOSS,
    Run,
    dense_metric,
    mean_and_spread,
    metric,
    metric_name,
    seconds_alone,
)

RETRAINING = ("dynabert", "ebert")
SHORT = {
    "mnli": "train sample of 9,999 rows",
    "qnli": "train sample of 9,999 rows",
    "qqp": "train sample of 9,999 rows",
}
TRAINED = {
    "sst2": "6,920 sentences, 3 epochs",
    "stsb": "the training split, 18 minutes of one core",
    "squad": "740 steps of 16, contexts of at most 256 tokens",
    "squad2": "from the SQuAD 1.1 model, on one of two parts of the official dev split, cut by article",
}
"""What the logs of fine-tuning do not say."""
HEAD = """# The paper's tables and figures

`python benchmarks/paper.py` runs the paper's experiments in parts and writes this page from the lines that exist. The
lines are in `benchmarks/results/paper`, each with its settings, seed and commit, and so are the logs of fine-tuning.
`kprune` is the default criterion, `kprune criterion=released` that of the authors' code. Figures are means ± standard
deviations over seeds; one seed has no deviation, and – was not run.
"""
DIFFERENCES = """## What differs from the paper

- The models are 6-layer MiniLMs (all-MiniLM-L6-v2, 22.7 million parameters, a fifth of BERT-base), fine-tuned by
  `benchmarks/finetune.py` on less text. They are weaker than the paper's, so compare what is lost, method with method.
- Samples have 100,000 tokens, as in the paper, but for the section on their size. Runs are made on a CPU.
- DynaBERT and EBERT train on all training rows at hand: 9,999 of MNLI and of QNLI, where the paper has 393,000 and
  105,000. They stop after a number of minutes or 3 epochs a phase, whichever comes first.
- KCM cannot remove heads and refuses large reductions (`refused` in the tables).
- SQuAD 2.0 here is the official dev split, cut in two by article: one part trains, the other tests.
- There is no DistilBERT, and no OPT: the paper's perplexities of OPT are at the end of the page.
"""

Parts = Mapping[str, Sequence[Any]]
Section = Callable[[Found, Path], list[str]]


def write_page(page: Path, results: Path, parts: Parts) -> None:
    """Write the page and its pictures from the lines in a folder."""
    page.parent.mkdir(parents=True, exist_ok=True)
    found = {part: found_in(results / f"{part}.jsonl", pieces) for part, pieces in parts.items()}
    every = [run for each in found.values() for run in each.runs]
    text = [HEAD, *status_table(found, parts), DIFFERENCES, *models_table(every, results)]
    for part, (title, section) in SECTIONS.items():
        shown = found[part] + found["figure1"] if part == "rivals" and found[part].runs else found[part]
        text += [f"## {title}", "", f"*In the paper:* {SAYS[part]}", ""]
        if part == "table1":
            text += speed_table(read_results(results / "speed.jsonl"))
        if shown.runs:
            text += [*section(shown, page), ""]
        text += [missing(found[part], parts[part]), ""]
    text += opt_table()
    page.write_text("\n".join(text).rstrip() + "\n", encoding="utf-8")


def groups_of(runs: Iterable[Run], *names: str) -> dict[tuple[Any, ...], list[Run]]:
    """The runs by the values of some fields, in order of appearance."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run[name] for name in names), []).append(run)
    return groups


def spread(runs: Sequence[Run]) -> str:
    if not runs:
        return "–"
    average, deviation = mean_and_spread(runs, lambda run: 0, metric)[0]
    return f"{average:.2f} ± {deviation:.2f}" if len(runs) > 1 else f"{average:.2f}"


def row(cells: Iterable[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    return [row(heading), "|" + "---|" * len(heading), *map(row, rows)]


def missing(found: Found, pieces: Sequence[Any]) -> str:
    """One sentence about the runs of a part that have no line yet."""
    left, planned = open_cells(found, pieces), len(cells_of(pieces))
    if not left:
        return "All runs of this part are there."
    if not found.runs:
        return f"Not run yet ({planned} runs)."
    by_method: dict[str, dict[str, int]] = {}
    for task, method, *_ in left:
        counts = by_method.setdefault(method, {})
        counts[task] = counts.get(task, 0) + 1
    listed = "; ".join(
        f"{method} ({', '.join(f'{task} {count}' for task, count in counts.items())})"
        for method, counts in by_method.items()
    )
    return f"Missing runs, {len(left)} of {planned}: {listed}."


def status_table(found: Mapping[str, Found], parts: Parts) -> list[str]:
    """How much of each part there is."""
    rows = []
    for part, (title, _) in SECTIONS.items():
        planned, left = len(cells_of(parts[part])), len(open_cells(found[part], parts[part]))
        rows.append((title, f"{planned - left} of {planned}"))
    return [*table(("part", "runs that are there"), rows), ""]


def models_table(runs: Sequence[Run], results: Path) -> list[str]:
    """What each model was trained and tested on, and the dense metrics beside the paper's."""
    by_task = {task: group for (task,), group in groups_of(runs, "task").items()}
    rows = []
    for task in BERT:
        logs = read_results(results / f"finetune-{task}.jsonl")
        group = by_task.get(task, [])
        tested = ", ".join(sorted({f"{run['examples']:,}" for run in group}))
        here = f"{dense_metric(group[0]):.2f} {metric_name(group[0])}" if group else "–"
        rows.append(
            (task, training_of(task, logs), tested or "–", here, f"{BERT[task]:.2f}", f"{DISTILBERT[task]:.2f}")
        )
    heading = ("task", "trained on", "test rows", "dense here", "BERT of the paper", "DistilBERT of the paper")
    return [*table(heading, rows), ""]


def training_of(task: str, logs: Sequence[Mapping[str, Any]]) -> str:
    """The text that a model was fine-tuned on, by its log."""
    if not logs:
        return TRAINED[task] if task in ("sst2", "stsb", "squad") else "not yet"
    head = logs[0]
    size = f"{head['examples']:,} inputs" if "examples" in head else f"{head['steps']:,} steps of {head['batch']}"
    parts = [f"{size}, {head['epochs']:g} epochs", SHORT.get(task, ""), TRAINED.get(task, "")]
    return "; ".join(part for part in parts if part)


def accuracy_tables(found: Found, page: Path, *, name: str = "figure1") -> list[str]:
    """A picture, and a row per task and reduction with a column per method."""
    picture = page.with_name(f"{page.stem}-{name}.png")
    draw_reduction(found.runs, picture)
    methods = [method for (method,) in groups_of(found.runs, "method")]
    cells = groups_of(found.runs, "task", "reduction", "method")
    dense = {task: dense_metric(group[0]) for (task,), group in groups_of(found.runs, "task").items()}

    def cell(task: str, reduction: float, method: str) -> str:
        return (
            "refused"
            if (task, method, reduction) in found.refused
            else spread(cells.get((task, reduction, method), []))
        )

    rows = [
        (task, f"{dense[task]:.2f}", f"{reduction:.0%}", *(cell(task, reduction, method) for method in methods))
        for task, reduction in sorted(groups_of(found.runs, "task", "reduction"))
    ]
    heading = ("task", "dense", "removed", *methods)
    return [f"![metric against FLOPs removed]({picture.name})", "", *table(heading, rows), "", *lead_table(found.runs)]


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
    tasks = list(SPEED["kprune"])
    rows = []
    for (method, runtime), group in groups_of(map(dict, lines), "method", "runtime").items():
        of_task = {line["task"]: float(line["speedup"]) for line in group}
        rows.append((method, runtime, *speed_cells(of_task, tasks)))
    rows += [(method, "paper's GPU", *speed_cells(speeds, tasks)) for method, speeds in SPEED.items()]
    text = "Fastest model with less than 3 points lost, batch 32, the task's mean length; – is none, or not measured."
    return [text, "", *table(("method", "runtime", *tasks, "geometric mean"), rows), ""]


def speed_cells(speeds: Mapping[str, float], tasks: Sequence[str]) -> list[str]:
    found = [speeds[task] for task in tasks if task in speeds]
    cells = [f"{speeds[task]:.2f}×" if task in speeds else "–" for task in tasks]
    return [*cells, f"{prod(found) ** (1 / len(found)):.2f}×" if len(found) == len(tasks) else "–"]


def loss_table(found: Found, page: Path) -> list[str]:
    """The largest reduction of each task and method with less than three points lost."""
    tasks = [task for (task,) in groups_of(found.runs, "task")]
    cells = groups_of(found.runs, "method", "task")
    rows = []
    for (method,) in groups_of(found.runs, "method"):
        best = []
        for task in tasks:
            by_reduction = groups_of(cells.get((method, task), []), "reduction")
            lost = {r: mean(dense_metric(run) - metric(run) for run in group) for (r,), group in by_reduction.items()}
            good = [reduction for reduction, points in lost.items() if points < ALLOWED_LOSS]
            best.append(f"{max(good):.0%}" if good else "–")
        rows.append((method, *best))
    return ["Largest reduction of those with less than 3 points lost:", "", *table(("method", *tasks), rows)]


def ablation_table(found: Found, page: Path) -> list[str]:
    """Table 2, ours and the paper's."""
    cells = groups_of(found.runs, "method", "task")
    rows = [
        (method, *(part for task in paper for part in (spread(cells.get((method, task), [])), f"{paper[task]:.2f}")))
        for method, paper in ABLATIONS.items()
    ]
    return table(("80 % removed", "mrpc", "mrpc, paper", "squad", "squad, paper"), rows)


def sensitivity(option: str) -> Section:
    """A picture of the metric over one option of `criterion=released`."""

    def section(found: Found, page: Path) -> list[str]:
        picture = page.with_name(f"{page.stem}-{option.replace('_', '-')}.png")
        draw_sensitivity(found.runs, picture, option)
        return [f"![metric over {option}]({picture.name})"]

    return section


def sample_sizes(found: Found, page: Path) -> list[str]:
    """A picture and a table of the points lost over the tokens of the sample."""
    picture = page.with_name(f"{page.stem}-samples.png")
    draw_sample_sizes(found.runs, picture)
    rows = []
    for (task, reduction), group in groups_of(found.runs, "task", "reduction").items():
        points = mean_and_spread(group, lambda run: run["tokens"], lambda run: dense_metric(run) - metric(run))
        rows += [(task, f"{reduction:.0%}", f"{n:,}", f"{a:.2f} ± {d:.2f}") for n, (a, d) in points.items()]
    return [f"![points lost over tokens]({picture.name})", "", *table(("task", "removed", "tokens", "lost"), rows)]


def time_figure(found: Found, page: Path) -> list[str]:
    """Figure 3: a picture, and a row per task and method with the seconds."""
    picture = page.with_name(f"{page.stem}-figure3.png")
    draw_time(found.runs, picture)
    rows = [
        (task, method, f"{dense_metric(group[0]):.2f}", spread(group), removed(group), f"{seconds_alone(group):.0f}")
        for (task, method), group in groups_of(found.runs, "task", "method").items()
    ]
    heading = ("task", "method", "dense", "accuracy", "FLOPs removed", "seconds")
    text = "EBERT's FLOPs are means over the test's texts, with its gates on."
    return [f"![accuracy against time]({picture.name})", "", *table(heading, rows), "", text]


def removed(runs: Sequence[Run]) -> str:
    """The mean share of FLOPs that was removed; of a model with gates, on the test."""
    pairs: list[Sequence[float]] = [run["test_flops" if "test_flops" in run else "flops"] for run in runs]
    return f"{mean(1 - after / before for before, after in pairs):.1%}"


def opt_table() -> list[str]:
    """The paper's perplexities of decoders."""
    rows = [(name, *(f"{value:.2f}" for value in values)) for name, values in OPT.items()]
    heading = ("WikiText-2 perplexity in the paper", "dense", "5 %", "10 %", "15 %", "20 %")
    text = "The sample was 128 sentences of C4. `benchmarks/opt.py` runs this; no OPT was at hand here."
    return ["## Appendix: OPT", "", *table(heading, rows), "", text]


SECTIONS: dict[str, tuple[str, Section]] = {
    "figure1": ("Figure 1: accuracy of pruned models", accuracy_tables),
    "rivals": ("Further rivals without retraining", partial(accuracy_tables, name="rivals")),
    "table1": ("Table 1: speed within three points", loss_table),
    "figure3": ("Figure 3: accuracy against time", time_figure),
    "table2": ("Table 2: ablations", ablation_table),
    "temperature": ("Appendix: temperature γ", sensitivity("temperature")),
    "rep_weight": ("Appendix: weight λ of representational knowledge", sensitivity("rep_weight")),
    "head_weight": ("Appendix: weight μ of heads", sensitivity("head_weight")),
    "samples": ("Size of the sample", sample_sizes),
}
