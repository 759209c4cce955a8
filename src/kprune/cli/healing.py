"""`kprune heal`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from kprune.cli.group import Work
from kprune.cli.options import (
    config_options,
    data_options,
    evaluate_option,
    json_option,
    overwrite_option,
    split_option,
    take_config,
    take_data_options,
    tokens_option,
    validation_option,
)
from kprune.config import HealConfig, RunConfig


@click.command(
    "heal",
    cls=Work,
    examples=(
        "kprune heal small healed --against MODEL --text sentences.txt",
        "kprune heal small healed --against MODEL --text sentences.txt --heal 10m  # ten minutes",
    ),
)
@click.argument("folder")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--against", required=True, help="The dense model that FOLDER was pruned from.")
@evaluate_option
@validation_option
@data_options
@split_option("train on")
@tokens_option
@config_options(HealConfig)
@config_options(RunConfig, exclude=["offload"])
@overwrite_option
@json_option
def heal_command(
    folder: str, out_folder: Path, against: str, is_tested: bool, as_json: bool, overwrite: bool, **options: Any
) -> None:
    """Train FOLDER, a pruned model, toward the dense one on raw inputs, without labels, and write it to OUT.

    A pass reads --tokens tokens; after four passes, the next four read others, as far as there are.
    """
    config: HealConfig = take_config(HealConfig, dict(options))
    from kprune.checkpoints.processors import medium_of
    from kprune.checkpoints.source import Source, fetch
    from kprune.jobs.heal_checkpoint import heal_checkpoint
    from kprune.report.bars import out, progress_bar
    from kprune.report.summary import print_evaluation

    started = perf_counter()
    take_config(HealConfig, options)
    data = take_data_options(options)
    run: RunConfig = take_config(RunConfig, options)
    source, dense = (Source(fetch(name), name=name) for name in (folder, against))
    result, evaluation = heal_checkpoint(
        source,
        dense,
        replace(data, medium=medium_of(source)),
        config,
        run,
        out=out_folder,
        overwrite=overwrite,
        is_tested=is_tested,
        show_progress=progress_bar,
    )
    seconds = perf_counter() - started
    if as_json:
        scores = evaluation.as_json() if evaluation else None
        summary = {"folder": str(out_folder), **result.summary(), "seconds": result.seconds, "total_seconds": seconds}
        click.echo(json.dumps({**summary, "evaluation": scores}))
        return
    out.print(f"healed      {result.describe()}", highlight=False, soft_wrap=True)
    if evaluation:
        print_evaluation(evaluation, "healed", "dense", out)
    out.print(f"Written to {out_folder} in {seconds:.0f} s.", soft_wrap=True)
