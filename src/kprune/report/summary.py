"""Print results to a console: tables first, then one sentence per fact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from kprune.checkpoints.inspection import Inspection
from kprune.deploy.benchmark import Bench, Timing
from kprune.evaluation.evaluator import Evaluation
from kprune.jobs.sweep_choice import Point, knee_of, points_of
from kprune.report.sweep_table import named, sweep_table
from kprune.report.tables import evaluation_table, layers_table, speed_tables


def print_inspection(found: Inspection, console: Console) -> None:
    """Print the units kept per layer, then FLOPs, parameters and size."""
    console.print(layers_table(found.shape))
    dense, present = found.flops
    console.print(
        f"FLOPs       {present / 1e9:9.3f} G of {dense / 1e9:.3f} G at {found.length:.0f} tokens: "
        f"{1 - present / dense:.1%} removed"
    )
    dense_parameters, parameters = found.parameters
    console.print(
        f"parameters  {parameters / 1e6:9.2f} M of {dense_parameters / 1e6:.2f} M (embeddings and head included)"
    )
    console.print(f"on disk     {found.bytes_on_disk / 1e6:9.1f} MB")


def print_evaluation(result: Evaluation, name: str, other: str, console: Console) -> None:
    """Print the evaluation's table, then its notes; `other` is the reference model's name, or empty."""
    console.print(evaluation_table(result, name, other))
    for note in result.notes:
        console.print(f"Note: {note}", highlight=False, soft_wrap=True)


def print_sweep(
    lines: Sequence[Mapping[str, Any]], max_drop: float | None, chosen: Point | None, command: str, console: Console
) -> None:
    """Print a sweep's points, and the command for the one that is proposed."""
    console.print(sweep_table(lines, chosen))
    knee = knee_of(points_of(lines))
    console.print(f"The knee of the curve is at {named(knee)}.", highlight=False)
    if chosen is None:
        console.print(f"No reduction stays within a drop of {max_drop:g} points; try smaller ones, or test more rows.")
        return
    reason = "the knee" if max_drop is None else f"the largest reduction within {max_drop:g} points"
    console.print(f"Proposed is {named(chosen)}, {reason}:", highlight=False)
    console.print(f"  {command}", highlight=False, soft_wrap=True)


def print_bench(result: Bench, console: Console) -> None:
    """Print the tables of times, then what separates each model from its FLOPs ratio."""
    for table in speed_tables(result):
        console.print(table, "")
    for timing in result.timings:
        if timing.loss is not None:
            console.print(explain_loss(timing), highlight=False, soft_wrap=True)
    for note in result.notes:
        console.print(note, highlight=False, soft_wrap=True)


def explain_loss(timing: Timing) -> str:
    """Return a sentence on the difference between a model's time and the time that its FLOPs predict."""
    loss = timing.loss
    if loss is None or timing.flops_ratio is None:
        return ""
    parts = {
        "embeddings and head": loss.outside,
        "norms and residual sums": loss.norms,
        "narrow shapes and calls": loss.shapes,
    }
    listed = ", ".join(f"{name} {value:+.1f} ms" for name, value in parts.items())
    return (
        f"{timing.model} in {timing.runtime}, {timing.batch} × {timing.length}: {timing.p50_ms:.1f} ms, by FLOPs "
        f"{timing.p50_ms - loss.total:.1f}; between them: {listed}."
    )
