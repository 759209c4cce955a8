"""What people would rather look at than read: the units left in each layer, in the terminal and as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from kprune.evaluate import Evaluation
from kprune.metrics import Difference, Figure
from kprune.speed import Bench, Timing
from kprune.tasks import Task

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#D9D9D9"
"""Okabe and Ito's colours, told apart by the colour-blind."""


BARE: dict[str, dict[str, None]] = {".png": {"Software": None}, ".svg": {"Creator": None, "Date": None}}
"""What pictures would else tell of the program that drew them, and when."""


@dataclass(frozen=True)
class Shape:
    """Units left in each layer, bottom to top, of those that the dense model has."""

    heads: Sequence[int]
    neurons: Sequence[int]
    dense_heads: int
    dense_neurons: int


def bar(left: int, total: int, width: int, colour: str) -> Text:
    """A bar of `width` characters, filled to left / total by eighths."""
    eighths = round(8 * width * left / total) if total else 0
    if left and not eighths:
        eighths = 1  # a sublayer with anything left shows
    full, rest = divmod(eighths, 8)
    filled = "█" * full + (chr(0x2590 - rest) if rest else "")
    return Text(filled, style=colour) + Text("·" * (width - len(filled)), style="dim")


def layers_table(shape: Shape, width: int = 24) -> Table:
    """The units left per layer, top layer first, as bars."""
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


def evaluation_table(result: Evaluation, name: str, other: str = "") -> Table:
    """An evaluation's figures with their intervals; beside another model, the differences and what they are worth."""
    title = f"{result.test}, {result.examples:,} examples, 95 % intervals"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", show_header=False)
    if not other:
        for figure in result.figures:
            table.add_row(figure.name, name, _with_interval(figure))
        return table
    for ours, theirs, gap in zip(result.figures, result.against, result.differences, strict=True):
        verdict = "equal" if gap.p_value == 1.0 and not (gap.low or gap.high) else _verdict(gap)
        table.add_row(ours.name, other, _with_interval(theirs))
        table.add_row("", name, _with_interval(ours))
        table.add_row("", "difference", _with_interval(gap), verdict)
    for figure in result.fidelity:
        table.add_row(figure.name, f"with {other}", _with_interval(figure))
    return table


def _with_interval(figure: Figure | Difference) -> str:
    sign = "+" if isinstance(figure, Difference) else ""
    # The others are points of a hundred, or perplexities.
    digits = 4 if figure.name in ("divergence", "squared-error") else 2
    value, low, high = (round(each, digits) + 0.0 for each in (figure.value, figure.low, figure.high))  # no "-0.00"
    return f"{value:{sign}.{digits}f} ({low:{sign}.{digits}f} to {high:{sign}.{digits}f})"


def _verdict(gap: Difference) -> str:
    return f"p = {gap.p_value:.3f}: {'may be noise' if gap.is_noise else 'not noise'}"


def speed_tables(result: Bench) -> list[Table]:
    """Times of models side by side, a table per runtime and shape, and what each takes."""
    tables = []
    for runtime, batch, length in dict.fromkeys((t.runtime, t.batch, t.length) for t in result.timings):
        title = f"{runtime}, batch {batch} × {length} tokens, {result.threads} threads"
        table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
        for heading in ("model", "p50 ms", "p95 ms", "texts/s", "speed-up", "FLOPs ratio", "encoder, of ideal"):
            table.add_column(heading, justify="left" if heading == "model" else "right")
        for each in result.timings:
            if (each.runtime, each.batch, each.length) == (runtime, batch, length):
                table.add_row(
                    each.model,
                    f"{each.p50_ms:.1f}",
                    f"{each.p95_ms:.1f}",
                    f"{each.texts_per_second:.0f}",
                    _times(each.speedup),
                    _times(each.flops_ratio),
                    f"{_times(each.encoder_speedup)}, {each.encoder_speedup / each.flops_ratio:.0%}"
                    if each.encoder_speedup and each.flops_ratio
                    else "",
                )
        tables.append(table)
    if result.footprints:
        table = Table(box=None, pad_edge=False, title="to load and hold", title_justify="left", title_style="bold")
        for heading in ("model", "runtime", "load s", "peak MB", "disk MB"):
            table.add_column(heading, justify="left" if heading in ("model", "runtime") else "right")
        for found in result.footprints:
            table.add_row(
                found.model,
                found.runtime,
                f"{found.load_seconds:.2f}",
                f"{found.peak_megabytes:.0f}",
                f"{found.disk_megabytes:.1f}",
            )
        tables.append(table)
    return tables


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}×"


def what_eats(timing: Timing) -> str:
    """A sentence on what stands between a model's FLOPs and its time."""
    loss = timing.loss
    if loss is None or timing.flops_ratio is None:
        return ""
    parts = {
        "embeddings and head": loss.outside,
        "norms and residual sums": loss.norms,
        "narrow shapes and calls": loss.shapes,
    }
    told = ", ".join(f"{name} {value:+.1f} ms" for name, value in parts.items())
    return (
        f"{timing.model} in {timing.runtime}, {timing.batch} × {timing.length}: {timing.p50_ms:.1f} ms, by FLOPs "
        f"{timing.p50_ms - loss.total:.1f}; between them: {told}."
    )


def draw_speed(result: Bench, path: Path) -> None:
    """Times of models side by side as a PNG or SVG: bars by runtime and model, a panel per shape, FLOPs as a tick."""
    from matplotlib.figure import Figure as Picture
    from matplotlib.lines import Line2D

    shapes = list(dict.fromkeys((t.batch, t.length) for t in result.timings))
    models = list(dict.fromkeys(t.model for t in result.timings))
    models.sort(key=lambda name: name == result.reference)  # drawn from below: the reference on top
    runtimes = list(dict.fromkeys(t.runtime for t in result.timings))[::-1]
    height = 0.32 * len(models) * len(runtimes) + 0.25 * len(runtimes) + 1.3
    figure = Picture(figsize=(5.2 * len(shapes), height), layout="constrained")
    panels = figure.subplots(1, len(shapes), squeeze=False)[0]
    colours = dict(zip(reversed(models), ("#999999", BLUE, ORANGE, "#009E73", "#CC79A7"), strict=False))
    for axes, shape in zip(panels, shapes, strict=True):
        taken = {(t.runtime, t.model): t for t in result.timings if (t.batch, t.length) == shape}
        places, names = [], []
        for row, runtime in enumerate(runtimes):
            base = row * (len(models) + 0.7)
            places.append(base + (len(models) - 1) / 2)
            names.append(runtime)
            for number, model in enumerate(models):
                timing = taken.get((runtime, model))
                if timing is None:
                    continue
                axes.barh(base + number, timing.p50_ms, color=colours.get(model, GREY))
                note = f" {timing.p50_ms:.1f} ms" + (f", {timing.speedup:.2f}×" if timing.speedup else "")
                axes.text(timing.p50_ms, base + number, note, va="center", fontsize=9)
                if timing.loss is not None:
                    ideal = timing.p50_ms - timing.loss.total
                    axes.plot([ideal] * 2, [base + number - 0.4, base + number + 0.4], color="black", linewidth=1.5)
        axes.set_yticks(places, names)
        axes.set_xlim(0, 1.45 * max(t.p50_ms for t in taken.values()))
        axes.set_xlabel("median ms per batch")
        axes.set_title(f"batch {shape[0]} × {shape[1]} tokens")
        axes.spines[["top", "right"]].set_visible(False)
    handles = [Line2D([], [], color=colours.get(name, GREY), linewidth=7, label=name) for name in reversed(models)]
    if any(timing.loss is not None for timing in result.timings):
        handles.append(Line2D([], [], color="black", label="if time were FLOPs"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=130, metadata=BARE[path.suffix])


def tasks_table(tasks: Iterable[Task]) -> Table:
    """The benchmarks, a row each."""
    table = Table(box=None, pad_edge=False)
    for heading in ("task", "data", "columns", "for", "metrics"):
        table.add_column(heading)
    for task in tasks:
        table.add_row(
            task.name, f"{task.source} {task.subset}", ", ".join(task.texts), task.kind, ", ".join(task.metrics)
        )
    return table


def draw_layers(shape: Shape, path: Path, title: str) -> None:
    """The same as a PNG or SVG, by the path's ending."""
    from matplotlib.figure import Figure

    layers = range(len(shape.heads))
    figure = Figure(figsize=(9, 0.34 * len(shape.heads) + 1.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, counts, total, colour, name in (
        (left, shape.heads, shape.dense_heads, BLUE, "attention heads"),
        (right, shape.neurons, shape.dense_neurons, ORANGE, "FFN neurons"),
    ):
        axes.barh(layers, [total] * len(counts), color=GREY)
        axes.barh(layers, counts, color=colour)
        for layer, count in enumerate(counts):
            axes.text(total * 1.01, layer, f"{count:,}", va="center")
        axes.set_xlim(0, total * 1.12)
        axes.set_xlabel(f"{name} kept (of {total:,})")
        axes.spines[["top", "right"]].set_visible(False)
    left.set_yticks(list(layers), [str(layer) for layer in layers])
    left.set_ylabel("layer")
    figure.suptitle(title)
    figure.savefig(path, dpi=130, metadata=BARE[path.suffix])
