"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rich.table import Table
from rich.text import Text

from kprune.checkpoints.inspection import Shape
from kprune.data.tasks import Task
from kprune.deploy.benchmark import Bench, Timing
from kprune.deploy.footprint import Footprint
from kprune.evaluation.evaluator import Evaluation
from kprune.evaluation.metrics import Difference, Figure
from kprune.jobs.demo import BATCH, Demo
from kprune.report.figures import BLUE, ORANGE
from kprune.runtime.devices import count_threads


def bar(left: int, total: int, width: int, colour: str) -> Text:
    """Return a bar of `width` characters, filled to left / total in steps of an eighth."""
    eighths = round(8 * width * left / total) if total else 0
    if left and not eighths:
        eighths = 1  # a sublayer that is not empty must not look empty
    full, rest = divmod(eighths, 8)
    filled = "█" * full + (chr(0x2590 - rest) if rest else "")
    return Text(filled, style=colour) + Text("·" * (width - len(filled)), style="dim")


def layers_table(shape: Shape, width: int = 24) -> Table:
    """Return the units kept per layer as bars, top layer first."""
    table = Table(box=None, pad_edge=False)
    table.add_column("layer", justify="right")
    table.add_column(f"heads (of {shape.dense_heads})")
    table.add_column("", justify="right")
    table.add_column(f"neurons (of {shape.dense_neurons:,})")
    table.add_column("", justify="right")
    for layer in reversed(range(len(shape.heads))):
        heads, neurons = shape.heads[layer], shape.neurons[layer]
        table.add_row(
            str(layer),
            bar(heads, shape.dense_heads, width, BLUE),
            str(heads),
            bar(neurons, shape.dense_neurons, width, ORANGE),
            f"{neurons:,}",
        )
    return table


SHORT_KINDS = {
    "classification": "class",
    "question answering": "span",
    "token classification": "token",
    "masked language model": "mask",
    "embedding": "embed",
    "causal language model": "next",
    "image classification": "class",
    "sound classification": "class",
    "speech recognition": "CTC",
    "encoder states": "states",
}
"""Output kinds in the table of families, which must fit into a terminal."""


def families_table(families: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return one line per model type: its norms, projections, inputs, tested kinds and a checkpoint that was tried."""
    table = Table(box=None, pad_edge=False)
    for title in ("model type", "norm", "projections", "reads", "real"):
        table.add_column(title, no_wrap=True)
    table.add_column("tested", overflow="fold")
    for name, family in families.items():
        kinds = " ".join(SHORT_KINDS[kind] for kind in family["tested_kinds"])
        checkpoint = "yes" if family["real_checkpoint"] else "no"
        table.add_row(name, family["norm"], family["projections"], family["inputs"], checkpoint, kinds)
    return table


def evaluation_table(result: Evaluation, name: str, other: str = "") -> Table:
    """Return the figures with intervals; with `other`, also the differences and their p-values."""
    count = "1 example" if result.examples == 1 else f"{result.examples:,} examples"
    title = f"{result.test}, {count}, " + ("95 % intervals" if result.has_intervals else "too few for intervals")
    number = _with_interval if result.has_intervals else _without_interval
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", show_header=False)
    table.add_column()
    for _ in range(3):
        table.add_column(no_wrap=True)  # a narrow terminal folds the names only
    if not other:
        for figure in result.figures:
            table.add_row(figure.name, name, number(figure))
        return table
    for ours, theirs, gap in zip(result.figures, result.against, result.differences, strict=True):
        table.add_row(ours.name, other, number(theirs))
        table.add_row("", name, number(ours))
        table.add_row("", "difference", number(gap), _verdict(gap) if result.has_intervals else "")
    for figure in result.fidelity:
        table.add_row(figure.name, f"with {other}", number(figure))
    return table


def _with_interval(figure: Figure | Difference) -> str:
    low, high = (_without_interval(replace(figure, value=end)) for end in (figure.low, figure.high))
    return f"{_without_interval(figure)} ({low} to {high})"


def _without_interval(figure: Figure | Difference) -> str:
    sign = "+" if isinstance(figure, Difference) else ""
    digits = 4 if figure.name in ("divergence", "squared-error") else 2  # other figures are percentages or perplexities
    return f"{round(figure.value, digits) + 0.0:{sign}.{digits}f}"  # no "-0.00"


def _verdict(gap: Difference) -> str:
    if gap.p_value == 1.0 and not (gap.low or gap.high):
        return "equal"
    return f"p = {gap.p_value:.3f}: {'may be noise' if gap.is_noise else 'not noise'}"


def speed_tables(result: Bench) -> list[Table]:
    """Return one table of times per runtime and shape, and one of load time, memory and size."""
    cases = dict.fromkeys((timing.runtime, timing.batch, timing.length) for timing in result.timings)
    tables = [
        _times_table(
            f"{runtime}, batch {batch} × {length} tokens, {count_threads(result.threads)}",
            [t for t in result.timings if (t.runtime, t.batch, t.length) == (runtime, batch, length)],
        )
        for runtime, batch, length in cases
    ]
    return [*tables, _footprints_table(result.footprints)] if result.footprints else tables


def _times_table(title: str, timings: Iterable[Timing]) -> Table:
    headings = ("p50 ms", "p95 ms", "texts/s", "speed-up", "FLOPs ratio", "encoder, of ideal")
    table = _bench_table(title, "model", "dtype", *headings)
    for timing in timings:
        encoder = ""
        if timing.encoder_speedup and timing.flops_ratio:
            share = timing.encoder_speedup / timing.flops_ratio
            encoder = f"{_ratio(timing.encoder_speedup)}, {share:.0%}"
        table.add_row(
            timing.model,
            timing.dtype,
            f"{timing.p50_ms:.1f}",
            f"{timing.p95_ms:.1f}",
            f"{timing.texts_per_second:.0f}",
            _ratio(timing.speedup),
            _ratio(timing.flops_ratio),
            encoder,
        )
    return table


def _footprints_table(footprints: Iterable[Footprint]) -> Table:
    table = _bench_table("to load and hold", "model", "runtime", "dtype", "load s", "peak MB", "disk MB")
    for footprint in footprints:
        table.add_row(
            footprint.model,
            footprint.runtime,
            footprint.dtype,
            f"{footprint.load_seconds:.2f}",
            f"{footprint.peak_megabytes:.0f}",
            f"{footprint.disk_megabytes:.1f}",
        )
    return table


def _bench_table(title: str, *headings: str) -> Table:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("model", "runtime", "dtype") else "right")
    return table


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}×"


def tasks_table(tasks: Iterable[Task]) -> Table:
    """Return the benchmark tasks, one per row."""
    table = Table(box=None, pad_edge=False)
    for heading in ("task", "data", "columns", "for", "metrics"):
        table.add_column(heading)
    for task in tasks:
        table.add_row(
            task.name, f"{task.source} {task.subset}", ", ".join(task.texts), task.kind, ", ".join(task.metrics)
        )
    return table


def demo_tables(demo: Demo) -> list[Table]:
    """Return the demo's figures, dense and pruned, and the paragraphs that each model finds."""
    return [_demo_figures(demo), _demo_answers(demo)]


def _demo_figures(demo: Demo) -> Table:
    table = Table(title="all-MiniLM-L6-v2, before and after", title_justify="left")
    for heading in ("", "dense", "pruned", "ratio"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, (before, after), unit, form in (
        ("encoder GFLOPs per text", demo.flops, 1e9, ".3f"),
        ("million parameters", demo.parameters, 1e6, ".2f"),
        ("megabytes on disk", demo.megabytes, 1.0, ".1f"),
        (f"ms per batch of {BATCH}", demo.milliseconds, 1.0, ".1f"),
    ):
        table.add_row(name, f"{before / unit:{form}}", f"{after / unit:{form}}", f"{after / before:.2f}")
    table.add_row("cosine to the dense embedding", "1", f"{demo.cosine:.3f}", "")
    table.add_row("  of the worst twentieth", "1", f"{demo.worst_cosine:.3f}", "")
    return table


def _demo_answers(demo: Demo) -> Table:
    table = Table(title="nearest of the held-out paragraphs", title_justify="left", show_lines=True)
    for heading in ("question", "dense finds", "pruned finds"):
        table.add_column(heading, ratio=1)
    for row in demo.nearest:
        table.add_row(*map(_shorten, row))
    return table


def _shorten(text: str, limit: int = 220) -> str:
    return text if len(text) <= limit else text[:limit].rsplit(" ", 1)[0] + " …"
