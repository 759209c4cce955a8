"""Figures as PNG or SVG: the units kept per layer, and the times of models. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kprune.checkpoints.inspection import Shape
from kprune.deploy.benchmark import Bench, Timing

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#D9D9D9"
"""Colours of Okabe and Ito, which colour-blind readers can distinguish."""
MODEL_COLOURS = ("#999999", BLUE, ORANGE, "#009E73", "#CC79A7")
METADATA: dict[str, dict[str, None]] = {".png": {"Software": None}, ".svg": {"Creator": None, "Date": None}}
"""Fields to leave out, so that the same data give the same file."""


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure; the path's suffix selects the format."""
    figure.savefig(path, dpi=130, metadata=METADATA[path.suffix])


def draw_layers(shape: Shape, path: Path, title: str) -> None:
    """Draw the units kept per layer."""
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
    save_figure(figure, path)


def draw_speed(result: Bench, path: Path) -> None:
    """Draw median times: one panel per shape, one bar per runtime and model, a tick where FLOPs predict it."""
    from matplotlib.figure import Figure

    shapes = list(dict.fromkeys((timing.batch, timing.length) for timing in result.timings))
    models = list(dict.fromkeys(timing.model for timing in result.timings))
    models.sort(key=lambda name: name == result.reference)  # bars are drawn upwards: the reference comes on top
    runtimes = list(dict.fromkeys(timing.runtime for timing in result.timings))[::-1]
    colours = dict.fromkeys(models, GREY) | dict(zip(reversed(models), MODEL_COLOURS, strict=False))
    height = 0.32 * len(models) * len(runtimes) + 0.25 * len(runtimes) + 1.3
    figure = Figure(figsize=(5.2 * len(shapes), height), layout="constrained")
    panels = figure.subplots(1, len(shapes), squeeze=False)[0]
    for axes, (batch, length) in zip(panels, shapes, strict=True):
        timings = [timing for timing in result.timings if (timing.batch, timing.length) == (batch, length)]
        _draw_times(axes, timings, runtimes, colours)
        axes.set_title(f"batch {batch} × {length} tokens")
    has_ideal = any(timing.loss is not None for timing in result.timings)
    _add_speed_legend(figure, colours, has_ideal=has_ideal)
    save_figure(figure, path)


def _draw_times(axes: Any, timings: Sequence[Timing], runtimes: Sequence[str], colours: dict[str, str]) -> None:
    """Draw one panel: a group of bars per runtime, one bar per model."""
    models = list(colours)
    group_height = len(models) + 0.7
    for timing in timings:
        place = runtimes.index(timing.runtime) * group_height + models.index(timing.model)
        _draw_time(axes, timing, place, colours[timing.model])
    centres = [row * group_height + (len(models) - 1) / 2 for row in range(len(runtimes))]
    axes.set_yticks(centres, runtimes)
    axes.set_xlim(0, 1.45 * max(timing.p50_ms for timing in timings))
    axes.set_xlabel("median ms per batch")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_time(axes: Any, timing: Timing, place: float, colour: str) -> None:
    axes.barh(place, timing.p50_ms, color=colour)
    note = f" {timing.p50_ms:.1f} ms" + (f", {timing.speedup:.2f}×" if timing.speedup else "")
    axes.text(timing.p50_ms, place, note, va="center", fontsize=9)
    if timing.loss is not None:
        ideal = timing.p50_ms - timing.loss.total
        axes.plot([ideal, ideal], [place - 0.4, place + 0.4], color="black", linewidth=1.5)


def _add_speed_legend(figure: Any, colours: dict[str, str], *, has_ideal: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colours[name], linewidth=7, label=name) for name in reversed(colours)]
    if has_ideal:
        handles.append(Line2D([], [], color="black", label="if time were FLOPs"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
