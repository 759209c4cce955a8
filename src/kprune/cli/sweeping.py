"""`kprune sweep`."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kprune.cli.group import Work
from kprune.cli.help_page import Decorator, grouped
from kprune.cli.options import (
    config_options,
    data_options,
    guard_option,
    json_option,
    parse_shape,
    report_option,
    require_report,
    split_option,
    take_config,
    take_data_options,
    take_heal_config,
    tokens_option,
    validation_option,
    write_report,
)
from kprune.cli.pruning import prune_command
from kprune.cli.repeating import command_like, command_text
from kprune.config import HealConfig, PruneConfig, RunConfig
from kprune.errors import BadOptions
from kprune.pruning.choices import require_static

if TYPE_CHECKING:
    from kprune.jobs.preparation import Prepared
    from kprune.jobs.sweep_choice import Point


def _choice_options() -> tuple[Decorator, ...]:
    """Options for the reductions, and for the one that is proposed."""
    return (
        click.option(
            "--reduction",
            "reductions",
            multiple=True,
            type=float,
            help="A share to remove.  [default: six, from 0.2 to 0.8]",
        ),
        click.option(
            "--max-drop", type=float, help="Choose the largest reduction that costs at most this many points."
        ),
        guard_option,
    )


def _timing_options() -> tuple[Decorator, ...]:
    """Options for the timing of each model."""
    return (
        click.option(
            "--shape", default="8x128", show_default=True, metavar="BATCHxLENGTH", help="Inputs of the timing."
        ),
        click.option("--threads", type=click.IntRange(min=1), help="Threads of the timing.  [default: torch's]"),
        click.option("--seconds", type=float, default=1.0, show_default=True, help="Timing of each model."),
    )


@click.command(
    "sweep",
    cls=Work,
    examples=(
        "kprune sweep MODEL --data my.csv --text-column text --label-column y --max-drop 1 --report sweep.html",
        "kprune sweep MODEL --text sentences.txt --reduction 0.3 --reduction 0.5 --reduction 0.7 --heal  # both curves",
    ),
)
@click.argument("model")
@click.argument("out", metavar="[OUT]", type=click.Path(path_type=Path, dir_okay=False), default="sweep.jsonl")
@grouped("how much", *_choice_options())
@grouped("advanced", *_timing_options())
@validation_option
@data_options
@split_option("sample")
@tokens_option
@config_options(PruneConfig, exclude=["reduction"])
@config_options(HealConfig, exclude=["seed"], defaults={"heal": None})
@config_options(RunConfig, exclude=["checkpoint"])
@report_option
@json_option
@click.pass_context
def sweep_command(
    ctx: click.Context, /, model: str, out: Path, as_json: bool, report: Path | None, **options: Any
) -> None:
    """Prune MODEL to several reductions and test each, to see how much can be removed; no model is written.

    OUT gets a JSON line per point, by default sweep.jsonl. A killed sweep continues when it is started again.
    """
    if options["max_drop"] is not None and not options["max_drop"] > 0:
        raise BadOptions(f"--max-drop is {options['max_drop']:g}, but must be above 0: 1.0 allows one point.")
    require_report(report)
    max_drop, guard = options.pop("max_drop"), options.pop("guard")
    lines = _swept(model, out, options, command_text(ctx))
    from kprune.jobs.sweep_choice import knee_of, largest_within, points_of
    from kprune.report.bars import out as console
    from kprune.report.summary import print_sweep

    points = points_of(lines)
    chosen = knee_of(points) if max_drop is None else largest_within(points, max_drop, guard=guard)
    command = "" if chosen is None else prune_command_for(ctx, chosen)
    if as_json:
        result = {"lines": lines, "chosen": chosen and vars(chosen), "command": command or None}
        click.echo(json.dumps(result))
    else:
        print_sweep(lines, max_drop, chosen, command, console)
        console.print(f"The points are in {out}.", highlight=False, soft_wrap=True)
    if report is not None:
        from kprune.report.html.sweep_document import sweep_page

        write_report(report, sweep_page(lines, max_drop=max_drop, chosen=chosen, command=command))


NOT_OF_PRUNE = ("max_drop", "guard", "shape", "threads", "report", "as_json")
"""Options that mean something else to `kprune prune`, contradict its --reduction, or are of the output."""


def prune_command_for(ctx: click.Context, point: Point) -> str:
    """The command that prunes the model to a point of the sweep, and tests it on the same rows."""
    healing = {each.name for each in fields(HealConfig)} - {"seed"}
    without = {*NOT_OF_PRUNE, *(() if point.healed else healing)}
    options = ["--reduction", f"{point.reduction:g}", "--evaluate"]
    return command_like(ctx, prune_command, [ctx.params["model"], "small"], options, without)


def _swept(model: str, out: Path, options: dict[str, Any], command: str) -> list[dict[str, Any]]:
    """The lines of the sweep."""
    shape, threads, seconds = parse_shape(options.pop("shape")), options.pop("threads"), options.pop("seconds")
    reductions = options.pop("reductions")
    heal = take_heal_config(options, seed=options["seed"])
    require_static(take_config(PruneConfig, dict(options)).method)
    from kprune.jobs.sweep import REDUCTIONS, SweepPlan, sweep
    from kprune.report.bars import progress_bar
    from kprune.runtime.distributed import launched_processes

    if launched_processes() > 1:
        raise BadOptions("a sweep runs in one process; leave torchrun out.")
    run: RunConfig = take_config(RunConfig, options)
    plan = SweepPlan(reductions or REDUCTIONS, heal, shape, threads, seconds)
    prepared, config = _prepare(model, run, heal.held_out if heal else 0.0, options)
    with progress_bar() as advance:
        return sweep(prepared, config, plan, out, run=run, command=command, advance=advance)


def _prepare(model: str, run: RunConfig, held_out: float, options: dict[str, Any]) -> tuple[Prepared, PruneConfig]:
    """The model with its sample and test."""
    from kprune.checkpoints.processors import medium_of
    from kprune.checkpoints.source import Source, fetch
    from kprune.jobs.preparation import prepare_from

    data = take_data_options(options)
    data.require_one_source()
    source = Source(fetch(model), name=model)
    data = replace(data, medium=medium_of(source))
    config: PruneConfig = take_config(PruneConfig, options, pooling=source.pooling)
    return prepare_from(source, data, config, wants_test=True, device=run.device, held_out=held_out), config
