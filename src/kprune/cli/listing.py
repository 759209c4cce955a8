"""`kprune tasks`, `kprune families` and `kprune inspect`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from kprune.cli.group import Work
from kprune.cli.options import json_option


@click.command("tasks", cls=Work)
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


@click.command("families", cls=Work)
@json_option
def families_command(as_json: bool) -> None:
    """List the model families that can be pruned."""
    from kprune.models.families import FAMILIES
    from kprune.report.bars import out

    families = FAMILIES
    if as_json:
        click.echo(json.dumps({name: asdict(family) for name, family in families.items()}))
    else:
        for name in sorted(families):
            out.print(name)


@click.command("inspect", cls=Work)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--length", type=click.FloatRange(min=1), help="Tokens per input, for FLOPs.  [default: the sample's mean]"
)
@json_option
def inspect_command(folder: Path, length: float | None, as_json: bool) -> None:
    """Show what FOLDER holds: remaining units per layer, FLOPs, parameters, size."""
    from kprune.checkpoints.inspection import inspect
    from kprune.report.bars import out
    from kprune.report.summary import print_inspection

    inspection = inspect(folder, length)
    if as_json:
        click.echo(json.dumps(asdict(inspection)))
    else:
        print_inspection(inspection, out)
