"""The work of `kprune prune --dry-run`."""

from __future__ import annotations

import json
from typing import Any

import click

from kprune.checkpoints.source import Source, fetch
from kprune.cli.options import take_config, take_data_options, take_heal_config
from kprune.cli.prune_run import prepare_run, take_goal
from kprune.config import RunConfig
from kprune.errors import BadOptions
from kprune.jobs.pruning_plan import plan
from kprune.report.bars import out
from kprune.report.summary import print_plan
from kprune.runtime.distributed import launched_processes


def run_plan(model: str, options: dict[str, Any], *, as_json: bool) -> None:
    """Print what `run_prune` would do with these options; nothing is written."""
    if launched_processes() > 1:
        raise BadOptions("a dry run is made by one process; leave torchrun out.")
    goal, data = take_goal(options), take_data_options(options)
    options.pop("dtype")
    heal = take_heal_config(options, seed=options["seed"])
    run: RunConfig = take_config(RunConfig, options)
    source = Source(fetch(model), name=model)
    prepared, config = prepare_run(source, data, goal, run, options, held_out=heal.held_out if heal else 0.0)
    found = plan(prepared, config, run)
    if as_json:
        click.echo(json.dumps(found.as_json()))
        return
    print_plan(found, out)
    extra = [name for name, is_asked in (("the healing", heal), ("the test", goal.is_tested)) if is_asked]
    if extra:
        out.print(f"The time of {' and '.join(extra)} comes on top.")
    out.print("Nothing was written.")
