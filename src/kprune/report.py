"""What people would rather look at than read: the units left in each layer, in the terminal and as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from kprune.evaluate import Evaluation
from kprune.metrics import Difference, Figure
from kprune.tasks import Task

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#D9D9D9"
"""Okabe and Ito's colours, told apart by the colour-blind."""


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
    digits = 4 if figure.name == "divergence" else 2  # the others are points of a hundred, or perplexities
    value, low, high = (round(each, digits) + 0.0 for each in (figure.value, figure.low, figure.high))  # no "-0.00"
    return f"{value:{sign}.{digits}f} ({low:{sign}.{digits}f} to {high:{sign}.{digits}f})"


def _verdict(gap: Difference) -> str:
    return f"p = {gap.p_value:.3f}: {'may be noise' if gap.is_noise else 'not noise'}"


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
    figure.savefig(path, dpi=130)
