"""What people would rather look at than read: the units left in each layer, in the terminal and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

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
