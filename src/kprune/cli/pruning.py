"""`kprune prune`: its options; `cli/prune_run.py` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kprune.cli.group import Work
from kprune.cli.help_page import Decorator, apply_options
from kprune.cli.options import (
    config_options,
    data_options,
    dtype_option,
    evaluate_option,
    guard_option,
    json_option,
    overwrite_option,
    parse_shape,
    report_option,
    require_report,
    split_option,
    take_config,
    take_heal_config,
    tokens_option,
    validation_option,
)
from kprune.cli.repeating import command_text
from kprune.config import HealConfig, PruneConfig, RunConfig
from kprune.deploy.runtimes import RUNTIMES
from kprune.errors import BadOptions
from kprune.pruning.choices import require_static


def _timing_options() -> tuple[Decorator, ...]:
    """Options for the time that --speedup measures."""
    return (
        click.option(
            "--shape", default="32x128", show_default=True, metavar="BATCHxLENGTH", help="Inputs for --speedup."
        ),
        click.option(
            "--runtime",
            type=click.Choice(list(RUNTIMES)),
            default="torch",
            show_default=True,
            help="Runtime for --speedup.",
        ),
        click.option("--threads", type=click.IntRange(min=1), help="Threads for --speedup.  [default: torch's]"),
        click.option(
            "--cache/--no-cache",
            default=True,
            show_default=True,
            help="Keep the times of --speedup.",
        ),
    )


def goal_options(command: Any) -> Any:
    """Options of `Goal`."""
    return apply_options(
        apply_options(command, _timing_options(), "advanced"),
        (
            click.option(
                "--speedup", type=float, help="Instead: make the model this many times as fast, measured on --shape."
            ),
            click.option(
                "--max-drop", type=float, help="Instead: remove as much as costs at most this many points on the test."
            ),
            guard_option,
        ),
        "how much",
    )


@click.command(
    "prune",
    cls=Work,
    examples=(
        "kprune prune MODEL small --text sentences.txt --reduction 0.6",
        "kprune prune MODEL small --data pairs.csv --column question --column passage --reduction 0.6  # pairs",
        "kprune prune MODEL small --data my.csv --text-column text --label-column y --max-drop 1  # points",
        "kprune prune MODEL small --text sentences.txt --speedup 2  # twice as fast, measured",
        "kprune prune MODEL healed --text sentences.txt --reduction 0.6 --heal  # then train toward the dense model",
        "kprune prune MODEL small --text sentences.txt --reduction 0.6 --dry-run  # how long, how much memory",
        "zcat corpus.gz | kprune prune MODEL small --text - --reduction 0.6  # from another program",
    ),
)
@click.argument("model")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--dry-run", is_flag=True, help="Write nothing: say what would be removed, how long it takes, and the memory."
)
@config_options(PruneConfig, only=["reduction"], defaults={"reduction": None})
@goal_options
@evaluate_option
@validation_option
@data_options
@split_option("sample")
@tokens_option
@config_options(PruneConfig, exclude=["reduction"])
@config_options(HealConfig, exclude=["seed"], defaults={"heal": None})
@config_options(RunConfig)
@dtype_option("Type of OUT's weights.  [default: MODEL's]")
@click.option(
    "--self-contained",
    is_flag=True,
    help="Write a modeling file into OUT, which then loads without kprune by trust_remote_code=True.",
)
@overwrite_option
@report_option
@json_option
@click.pass_context
def prune_command(
    ctx: click.Context,
    /,
    model: str,
    out_folder: Path,
    as_json: bool,
    overwrite: bool,
    dry_run: bool,
    report: Path | None,
    **options: Any,
) -> None:
    """Prune MODEL (a folder or hub name) on raw text, images or sound, and write it to OUT.

    With torchrun, several processes share the sample: torchrun --nproc-per-node 2 -m kprune prune ...
    """
    require_report(report)
    _require_consistent(options, out_folder, is_plan=dry_run)
    if dry_run:
        from kprune.cli.plan_run import run_plan

        run_plan(model, options, as_json=as_json)
        return
    from kprune.cli.prune_run import run_prune  # torch and transformers take seconds

    page = None if report is None else (report, command_text(ctx))
    run_prune(model, out_folder, options, overwrite=overwrite, as_json=as_json, page=page)


def _require_consistent(options: dict[str, Any], out_folder: Path, *, is_plan: bool) -> None:
    """Raise, before anything is fetched or read, if options contradict each other or a value is out of range."""
    if sum(options[name] is not None for name in ("reduction", "max_drop", "speedup")) != 1:
        raise BadOptions("pass exactly one of --reduction, --max-drop and --speedup.")
    require_static(options["method"])
    if is_plan and options["reduction"] is None:
        raise BadOptions("--dry-run plans one reduction, not a search; pass --reduction.")
    if options["speedup"] is not None and (options["method"], options["budget"]) != ("kprune", "flops"):
        raise BadOptions("--speedup is a budget of its own, for the method kprune; leave --budget and --method out.")
    if options["speedup"] is not None and options["search"] == "uniform":
        raise BadOptions("--search uniform keeps the same share everywhere and cannot reach a --speedup.")
    if options["checkpoint"] and options["reduction"] is None:
        raise BadOptions("--checkpoint works with --reduction only; leave it out.")
    if options["checkpoint"] and options["checkpoint"].resolve().is_relative_to(out_folder.resolve()):
        raise BadOptions("--checkpoint must be a folder outside OUT.")
    parse_shape(options["shape"])
    take_config(PruneConfig, dict(options))
    take_heal_config(dict(options))
