"""`kprune evaluate`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kprune.checkpoints.files import short_names
from kprune.cli.group import Work
from kprune.cli.options import (
    data_options,
    device_option,
    json_option,
    report_option,
    require_report,
    take_data_options,
    test_split_option,
    write_report,
)
from kprune.cli.repeating import command_text


@click.command(
    "evaluate",
    cls=Work,
    examples=(
        "kprune evaluate small --against MODEL --data my.csv --text-column text --label-column y",
        "kprune evaluate small --against MODEL --text sentences.txt  # no labels: compare outputs",
        "kprune evaluate small --task sst2",
    ),
)
@click.argument("model")
@click.option("--against", help="Compare with this model, such as the dense one.")
@data_options
@device_option
@report_option
@json_option
@test_split_option
@click.pass_context
def evaluate_command(
    ctx: click.Context,
    /,
    model: str,
    against: str | None,
    as_json: bool,
    device: str | None,
    report: Path | None,
    **options: Any,
) -> None:
    """Test MODEL on a task or on your own data, with intervals; without labels, compare its outputs with another's."""
    require_report(report)
    from kprune.checkpoints.processors import medium_of
    from kprune.checkpoints.source import Source, fetch
    from kprune.jobs.evaluate_checkpoint import evaluate_checkpoint
    from kprune.report.bars import out, progress_bar
    from kprune.report.summary import print_evaluation

    data = take_data_options(options)
    data.require_one_source()
    source = Source(fetch(model), name=model)
    other = None if against is None else Source(fetch(against), name=against)
    test = data.with_windows(replace(data, medium=medium_of(source)).test(data.split))
    result = evaluate_checkpoint(
        source, test, against=other, max_length=data.max_length, device=device, show_progress=progress_bar
    )
    name, *reference = short_names([model] if against is None else [model, against])
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        print_evaluation(result, name, "".join(reference), out)
    if report is not None:
        from kprune.report.html.documents import evaluation_page

        names, changes = (name, "".join(reference)), result.changes_as_json()
        write_report(report, evaluation_page(result.as_json(), names, changes=changes, command=command_text(ctx)))
