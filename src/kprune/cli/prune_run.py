"""The work of `kprune prune`, and what is printed after a run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from kprune.checkpoints.inspection import inspect
from kprune.checkpoints.processors import medium_of
from kprune.checkpoints.source import Source, fetch
from kprune.cli.checking import constant_name
from kprune.cli.options import parse_shape, take_config, take_data_options, take_heal_config, write_report
from kprune.config import PruneConfig, RunConfig
from kprune.data.processing import MediaReader
from kprune.deploy.exporter import require_apart
from kprune.deploy.latency import default_cache
from kprune.errors import BadOptions
from kprune.jobs.data_options import DataOptions
from kprune.jobs.max_drop import PruneWithinDrop, Trial
from kprune.jobs.preparation import Prepared, prepare_from
from kprune.jobs.prune_checkpoint import (
    Stage,
    State,
    cast_to,
    prune_checkpoint,
    prune_to_reduction,
    require_output,
    weight_megabytes,
)
from kprune.jobs.speedup import PruneToSpeedup
from kprune.models.pruned_shape import record_of
from kprune.models.row_format import as_source, to_json
from kprune.pruning.result import describe_healing
from kprune.report.bars import err, out, progress_bar, quiet
from kprune.report.html.documents import prune_page
from kprune.report.summary import print_evaluation, print_inspection
from kprune.runtime.devices import dtype_name, half_precision_note
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


def take_goal(options: dict[str, Any]) -> Goal:
    """Remove the options of the goal, and return them as one object."""
    return Goal(**{name: options.pop(name) for name in Goal.__dataclass_fields__})


def run_prune(
    model: str,
    out_folder: Path,
    options: dict[str, Any],
    *,
    overwrite: bool,
    as_json: bool,
    page: tuple[Path, str] | None = None,
) -> None:
    """Prune a model as the options say, write it, and print what was done; `page` is a page's file and the command."""
    started = perf_counter()
    goal = take_goal(options)
    data = take_data_options(options)
    dtype, self_contained = options.pop("dtype"), options.pop("self_contained")
    heal = take_heal_config(options, seed=options["seed"])
    if launched_processes() > 1 and options["reduction"] is None:
        raise BadOptions("several processes work with --reduction only.")
    run: RunConfig = take_config(RunConfig, options)
    with process_group(local_device(run.device)), quiet(launched_rank() > 0):
        overwrite = require_output(out_folder, run, overwrite=overwrite)
        source = Source(fetch(model), name=model)
        require_apart(source, out_folder)
        prepared, config = prepare_run(source, data, goal, run, options, held_out=heal.held_out if heal else 0.0)
        state = prune_checkpoint(
            prepared,
            config,
            run,
            prune=goal.stage(),
            stages=[cast_to(dtype)] if dtype else [],
            out=out_folder,
            overwrite=overwrite,
            self_contained=self_contained,
            show_progress=progress_bar,
            heal=heal,
        )
        if rank() == 0:
            seconds = perf_counter() - started
            result = _result(state, out_folder, seconds)
            click.echo(json.dumps(result)) if as_json else _print_summary(state, out_folder, seconds)
            if page is not None:
                changes = state.evaluation.changes_as_json() if state.evaluation else None
                write_report(page[0], prune_page(result, source.title, changes=changes, command=page[1]))


def prepare_run(
    source: Source, data: DataOptions, goal: Goal, run: RunConfig, options: dict[str, Any], *, held_out: float
) -> tuple[Prepared, PruneConfig]:
    """Read the data, then load the weights: wrong data are noticed early."""
    config: PruneConfig = take_config(PruneConfig, options, pooling=source.pooling)
    data = replace(data, medium=medium_of(source))
    if data.medium and goal.speedup is not None:
        raise BadOptions(
            f"--speedup times models of text, and {source.title} reads {data.medium.name}; use --reduction."
        )
    device, wants_test = local_device(run.device), goal.wants_test
    return prepare_from(source, data, config, wants_test=wants_test, device=device, held_out=held_out), config


def _print_trial(trial: Trial, max_drop: float) -> None:
    verdict = "within" if trial.passed else "beyond"
    err.print(
        f"{trial.reduction:6.1%} removed: {round(trial.drop, 2) + 0.0:+.2f} points lost "
        f"({trial.low:+.2f} to {trial.high:+.2f}), {verdict} {max_drop:g}",
        highlight=False,
    )


def _result(state: State, out_folder: Path, seconds: float) -> dict[str, Any]:
    """What was done, as JSON."""
    pruned, evaluation = state.result, state.evaluation
    result = {"folder": str(out_folder), **pruned.summary(), "seconds": pruned.seconds, "total_seconds": seconds}
    result |= {"dtype": dtype_name(pruned.model.dtype)}
    result |= {"megabytes": [weight_megabytes(state.prepared.model), weight_megabytes(pruned.model)]}
    result |= {"peak_megabytes": peak_megabytes(), "gpu_peak_megabytes": gpu_peak_megabytes()}
    result |= {"trials": [], **state.details}
    if state.prepared.proposed is not None:
        result["proposed_row"] = to_json(state.prepared.proposed)
    result["steps"] = [asdict(step) for step in pruned.steps]
    result["evaluation"] = evaluation.as_json() if evaluation else None
    return result


def _describe_sample(state: State) -> str:
    """The size of the sample in tokens, and in texts, images or pieces of sound."""
    pruned, reader = state.result, state.prepared.tokenizer
    nouns = {"images": "images", "audio": "pieces of sound"}
    noun = nouns[reader.medium.name] if isinstance(reader, MediaReader) else "texts"
    mean = pruned.tokens / pruned.examples
    return f"{pruned.tokens:,} tokens in {pruned.examples:,} {noun} of {mean:.0f} tokens on average"


def _print_summary(state: State, out_folder: Path, seconds: float) -> None:
    print_inspection(inspect(out_folder), out)
    out.print(f"sample      {_describe_sample(state)}", highlight=False)
    if state.result.native is not None:
        out.print(f"native      {state.result.native.describe()}", highlight=False, soft_wrap=True)
    if state.result.healed is not None:
        out.print(f"healed      {describe_healing(state.result.healed)}", highlight=False, soft_wrap=True)
    if state.evaluation:
        print_evaluation(state.evaluation, "pruned", "dense", out)
    for note in state.notes:
        out.print(f"measured    {note}", highlight=False, soft_wrap=True)
    on_gpu = gpu_peak_megabytes()
    peak = f"{peak_megabytes():,.0f} MB" + ("" if on_gpu is None else f", GPU {on_gpu:,.0f} MB")
    needs = "" if record_of(state.result.model.config) is None else " after `import kprune`"
    out.print(
        f"Written to {out_folder} in {seconds:.0f} s; peak memory {peak}. Load it with from_pretrained{needs}.",
        soft_wrap=True,
    )
    if state.prepared.proposed is not None:
        out.print("The model's type has no row in the table. This one kept every law; please contribute it:")
        click.echo(as_source(state.prepared.proposed, constant_name(state.result.model.config.model_type)))
    note = half_precision_note(state.result.model)
    if note:
        out.print(note, highlight=False, soft_wrap=True)
