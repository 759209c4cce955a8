"""`kprune prune`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from kprune.checkpoints.inspection import inspect
from kprune.checkpoints.source import Source, fetch
from kprune.cli.options import (
    apply_options,
    config_options,
    data_options,
    json_option,
    overwrite_option,
    parse_shape,
    take_config,
    take_data_options,
    tokens_option,
)
from kprune.config import PruneConfig, RunConfig
from kprune.deploy.latency import default_cache
from kprune.deploy.runtimes import RUNTIMES
from kprune.errors import BadOptions
from kprune.jobs.data_options import DataOptions
from kprune.jobs.max_drop import PruneWithinDrop, Trial
from kprune.jobs.preparation import Prepared, prepare
from kprune.jobs.prune_checkpoint import Stage, State, prune_checkpoint, prune_to_reduction, require_output
from kprune.jobs.speedup import PruneToSpeedup
from kprune.pruning.registry import wants_labels
from kprune.report.bars import err, out, progress_bar, quiet
from kprune.report.summary import print_evaluation, print_inspection
from kprune.runtime.distributed import launched_processes, launched_rank, local_device, process_group, rank
from kprune.runtime.memory import gpu_peak_megabytes, peak_megabytes


@dataclass(frozen=True)
class Goal:
    """How much to remove: to a reduction, within a drop, or to a speed-up; and whether to test the result."""

    speedup: float | None
    max_drop: float | None
    guard: bool
    is_tested: bool
    shape: str
    runtime: str
    threads: int | None
    cache: bool

    @property
    def wants_test(self) -> bool:
        return self.is_tested or self.max_drop is not None

    def stage(self) -> Stage:
        """The first stage of the job."""
        if self.max_drop is not None:
            return PruneWithinDrop(self.max_drop, self.guard, lambda trial: _print_trial(trial, self.max_drop or 0.0))
        if self.speedup is not None:
            cache = default_cache() if self.cache else None
            return PruneToSpeedup(self.speedup, parse_shape(self.shape), self.runtime, self.threads, cache)
        return prune_to_reduction


def goal_options(command: Any) -> Any:
    """Options of `Goal`."""
    runtimes = click.Choice(list(RUNTIMES))
    return apply_options(
        command,
        (
            click.option(
                "--speedup", type=float, help="Instead: make the model this many times as fast, measured on --shape."
            ),
            click.option(
                "--max-drop", type=float, help="Instead: remove as much as costs at most this many points on the test."
            ),
            click.option(
                "--guard/--no-guard",
                default=True,
                show_default=True,
                help="Hold the upper end of the drop's 95 % interval to --max-drop, or its estimate only.",
            ),
            click.option("--evaluate", "is_tested", is_flag=True, help="Test the result against the dense model."),
            click.option(
                "--shape", default="32x128", show_default=True, metavar="BATCHxLENGTH", help="Inputs for --speedup."
            ),
            click.option("--runtime", type=runtimes, default="torch", show_default=True, help="Runtime for --speedup."),
            click.option("--threads", type=click.IntRange(min=1), help="Threads for --speedup.  [default: torch's]"),
            click.option(
                "--cache/--no-cache",
                default=True,
                show_default=True,
                help="Keep the times of --speedup.",
            ),
        ),
    )


@click.command("prune")
@click.argument("model")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@config_options(PruneConfig, only=["reduction"], defaults={"reduction": None})
@goal_options
@click.option("--validation", help="Test on this file, or split of --data.  [default: the task's, or a tenth held out]")
@data_options
@click.option("--split", help="Split of the data set to sample.  [default: train]")
@tokens_option
@config_options(PruneConfig, exclude=["reduction"])
@config_options(RunConfig)
@overwrite_option
@json_option
def prune_command(model: str, out_folder: Path, as_json: bool, overwrite: bool, **options: Any) -> None:
    """Prune MODEL (a folder or hub name) on raw text, and write it to OUT.

    With torchrun, several processes share the sample: torchrun --nproc-per-node 2 -m kprune prune ...
    """
    goal = Goal(**{name: options.pop(name) for name in Goal.__dataclass_fields__})
    data = take_data_options(options)
    _require_consistent(goal, options, out_folder)
    run: RunConfig = take_config(RunConfig, options)
    with process_group(local_device(run.device)), quiet(launched_rank() > 0):
        parse_shape(goal.shape)
        overwrite = require_output(out_folder, run, overwrite=overwrite)
        prepared, config = _prepare(model, data, goal, run, options)
        state = prune_checkpoint(
            prepared, config, run, prune=goal.stage(), out=out_folder, overwrite=overwrite, show_progress=progress_bar
        )
        if rank() == 0:
            _print_json(state, out_folder) if as_json else _print_summary(state, out_folder)


def _require_consistent(goal: Goal, options: dict[str, Any], out_folder: Path) -> None:
    """Raise if options contradict each other."""
    if sum(value is not None for value in (options["reduction"], goal.max_drop, goal.speedup)) != 1:
        raise BadOptions("pass exactly one of --reduction, --max-drop and --speedup.")
    if goal.speedup is not None and (options["method"], options["budget"]) != ("kprune", "flops"):
        raise BadOptions("--speedup is a budget of its own, for the method kprune; leave --budget and --method out.")
    if goal.speedup is not None and options["search"] == "uniform":
        raise BadOptions("--search uniform keeps the same share everywhere and cannot reach a --speedup.")
    if options["checkpoint"] and options["reduction"] is None:
        raise BadOptions("--checkpoint works with --reduction only; leave it out.")
    if options["checkpoint"] and options["checkpoint"].resolve().is_relative_to(out_folder.resolve()):
        raise BadOptions("--checkpoint must be a folder outside OUT.")
    if launched_processes() > 1 and options["reduction"] is None:
        raise BadOptions("several processes work with --reduction only.")


def _prepare(
    model: str, data: DataOptions, goal: Goal, run: RunConfig, options: dict[str, Any]
) -> tuple[Prepared, PruneConfig]:
    """Find the model, read the data, then load the weights: wrong data are noticed early."""
    source = Source(fetch(model), name=model)
    config: PruneConfig = take_config(PruneConfig, options, pooling=source.pooling)
    sample, test = data.sample_and_test(wants_test=goal.wants_test, seed=config.seed)
    prepared = prepare(
        source,
        sample,
        test,
        config,
        tokens=data.tokens,
        max_length=data.max_length,
        device=local_device(run.device),
        with_labels=wants_labels(config),
    )
    return prepared, config


def _print_trial(trial: Trial, max_drop: float) -> None:
    verdict = "within" if trial.passed else "beyond"
    err.print(
        f"{trial.reduction:6.1%} removed: {round(trial.drop, 2) + 0.0:+.2f} points lost "
        f"({trial.low:+.2f} to {trial.high:+.2f}), {verdict} {max_drop:g}",
        highlight=False,
    )


def _print_json(state: State, out_folder: Path) -> None:
    pruned, evaluation = state.result, state.evaluation
    result = {"folder": str(out_folder), **pruned.summary(), "seconds": pruned.seconds}
    result |= {"peak_megabytes": peak_megabytes(), "gpu_peak_megabytes": gpu_peak_megabytes()}
    result |= {"trials": [], **state.details}
    result["steps"] = [asdict(step) for step in pruned.steps]
    result["evaluation"] = evaluation.as_json() if evaluation else None
    click.echo(json.dumps(result))


def _print_summary(state: State, out_folder: Path) -> None:
    print_inspection(inspect(out_folder), out)
    if state.evaluation:
        print_evaluation(state.evaluation, "pruned", "dense", out)
    for note in state.notes:
        out.print(f"measured    {note}", highlight=False, soft_wrap=True)
    on_gpu = gpu_peak_megabytes()
    peak = f"{peak_megabytes():,.0f} MB" + ("" if on_gpu is None else f", GPU {on_gpu:,.0f} MB")
    out.print(
        f"Written to {out_folder} in {state.result.seconds:.0f} s; peak memory {peak}. "
        "Load it with from_pretrained after `import kprune`."
    )
