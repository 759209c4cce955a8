"""`kprune tasks`, `kprune families` and `kprune inspect`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from kprune.cli.group import Work
from kprune.cli.options import json_option


@click.command(
    "tasks",
    cls=Work,
    examples=(
        "kprune tasks",
        "kprune tasks --json",
    ),
)
@json_option
def tasks_command(as_json: bool) -> None:
    """List the benchmarks that models can be tested on."""
    from kprune.data.tasks import TASKS
    from kprune.report.bars import out
    from kprune.report.tables import tasks_table

    if as_json:
        click.echo(json.dumps({name: asdict(task) for name, task in TASKS.items()}))
    else:
        out.print(tasks_table(TASKS.values()))


@click.command(
    "families",
    cls=Work,
    examples=(
        "kprune families",
        "kprune families --json  # names the checkpoint that was pruned for real",
    ),
)
@json_option
def families_command(as_json: bool) -> None:
    """List the model families that can be pruned; `kprune check` tries others."""
    from kprune.models.families import FAMILIES, TESTED_KINDS
    from kprune.models.family import INPUTS
    from kprune.report.bars import out
    from kprune.report.tables import families_table

    families = {
        name: {
            "norm": family.norm_placement,
            "projections": family.projections,
            "inputs": INPUTS[family.inputs],
            "tested_kinds": list(TESTED_KINDS[name]),
            "real_checkpoint": family.real_checkpoint,
        }
        for name, family in sorted(FAMILIES.items())
    }
    if as_json:
        click.echo(json.dumps(families))
    else:
        out.print(families_table(families))
        out.print("tested: output kinds with random weights. real: a published checkpoint was pruned; --json names it.")


@click.command(
    "inspect",
    cls=Work,
    examples=(
        "kprune inspect small",
        "kprune inspect small --length 128  # FLOPs of inputs of 128 tokens",
    ),
)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--length",
    type=click.FloatRange(min=1),
    help="Tokens per input, for FLOPs.  [default: the sample's mean; dense: an image's patches, or 128]",
)
@json_option
def inspect_command(folder: Path, length: float | None, as_json: bool) -> None:
    """Show what FOLDER holds: remaining units per layer, FLOPs, parameters, size."""
    from kprune.checkpoints.inspection import inspect
    from kprune.checkpoints.source import Source
    from kprune.jobs.check_model import ensure_row
    from kprune.report.bars import out
    from kprune.report.summary import print_inspection

    ensure_row(Source(folder))
    inspection = inspect(folder, length)
    if as_json:
        click.echo(json.dumps(asdict(inspection)))
    else:
        print_inspection(inspection, out)
