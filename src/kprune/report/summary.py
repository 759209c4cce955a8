"""Print results to a console: tables first, then one sentence per fact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from kprune.checkpoints.inspection import Inspection
from kprune.deploy.benchmark import Bench, Timing
from kprune.evaluation.evaluator import Evaluation
from kprune.jobs.export_checkpoint import ExportResult
from kprune.jobs.pruning_plan import Plan
from kprune.jobs.sweep_choice import Point, knee_of, points_of
from kprune.report.sweep_table import named, sweep_table
from kprune.report.tables import evaluation_table, layers_table, speed_tables
from kprune.runtime.devices import count_threads


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
    if (vocabulary := found.vocabulary) is not None:
        console.print(
            f"vocabulary  {vocabulary.flops / (vocabulary.flops + present):9.1%} of the model's FLOPs are the output "
            f"layer's, which are not counted above; {vocabulary.parameters / parameters:.1%} of the parameters",
            soft_wrap=True,
        )
    console.print(f"on disk     {found.bytes_on_disk / 1e6:9.1f} MB")


def print_evaluation(result: Evaluation, name: str, other: str, console: Console) -> None:
    """Print the evaluation's table, then its notes; `other` is the reference model's name, or empty."""
    console.print(evaluation_table(result, name, other))
    for note in result.notes:
        console.print(f"Note: {note}", highlight=False, soft_wrap=True)


def print_export_result(result: ExportResult, console: Console) -> None:
    """Print a sentence per graph on its size and its difference from torch, then what the evaluated graph loses."""
    exported = result.exported
    for graph in exported.graphs:
        compared = (
            "not compared with torch"
            if graph.difference is None
            else f"on {exported.texts} texts its outputs differ from torch's by at most {graph.difference:.2g}"
        )
        console.print(
            f"{graph.file}: {graph.bytes / 1e6:.1f} MB ({exported.bytes[0] / 1e6:.1f} MB as safetensors); {compared}.",
            highlight=False,
            soft_wrap=True,
        )
    if result.evaluation is not None:
        evaluated = exported.quantized or exported.graphs[0]
        name = f"{evaluated.target} int8" if evaluated.int8 else evaluated.target
        print_evaluation(result.evaluation, name, "torch", console)
    if result.int8 is not None:
        console.print(result.int8.describe(), highlight=False, soft_wrap=True)


def print_plan(found: Plan, console: Console) -> None:
    """Print what a run would remove, then its time and its memory."""
    mean, size = found.tokens / found.examples, found.bytes_per_parameter / 1e6
    console.print(f"{found.title}: {found.layers} layers to prune", highlight=False)
    lines = {
        "sample": f"{found.tokens:,} tokens in {found.examples:,} inputs of {mean:.0f} tokens on average",
        "FLOPs": f"{_range(found.flops_removed, 1e9, 3)} G of {found.flops / 1e9:.3f} G would go",
        "parameters": f"{_range(found.parameters_removed, 1e6, 1)} M of {found.parameters / 1e6:.1f} M would go",
        "on disk": f"{_range(found.parameters_removed, 1 / size, 0)} MB of {found.parameters * size:.0f} MB would go",
        "time": f"about {found.seconds:.0f} s here, with {count_threads(found.threads)}: "
        f"{found.measuring_seconds:.0f} s to measure, {found.refitting_seconds:.0f} s to refit",
        "memory": f"about {found.megabytes:,.0f} MB at the peak",
    }
    for name, text in lines.items():
        console.print(f"{name:<11} {text}", highlight=False, soft_wrap=True)


def _range(ends: tuple[float, float], unit: float, digits: int) -> str:
    """Both ends of a range, or one where they are equal as printed."""
    return " to ".join(dict.fromkeys(f"{end / unit:.{digits}f}" for end in ends))


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


def describe_bench(
    models: int, shapes: Sequence[tuple[int, int]], runtimes: Sequence[str], timed_seconds: float
) -> str:
    """Return a sentence on what will be timed, and for how long."""
    inputs = ", ".join(f"{batch} × {length}" for batch, length in shapes)
    return (
        f"Timing {models} model{'s' * (models != 1)} on inputs of {inputs} tokens in {', '.join(runtimes)}: "
        f"{timed_seconds:,.0f} s of calls (--seconds); loading, writing graphs and measuring memory take more."
    )


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
