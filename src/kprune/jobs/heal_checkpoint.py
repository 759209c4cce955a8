"""Heal a folder that was pruned earlier: load it and the dense model, train, test, save."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kprune.checkpoints.source import Source
from kprune.checkpoints.writer import save
from kprune.config import HealConfig, PruneConfig, RunConfig
from kprune.deploy.exporter import require_apart
from kprune.evaluation.evaluator import Evaluation
from kprune.healing.healer import heal
from kprune.healing.result import Healed
from kprune.jobs.check_model import ensure_row
from kprune.jobs.data_options import DataOptions
from kprune.jobs.evaluate_checkpoint import require_same_inputs
from kprune.jobs.preparation import Prepared, prepare, with_padding
from kprune.jobs.prune_checkpoint import (
    ShowProgress,
    evaluate_models,
    no_progress,
    remove_journal,
    require_output,
    text_for_passes,
)
from kprune.pruning.journal import HEALING, FolderJournal, process_folder
from kprune.runtime.devices import on_device
from kprune.runtime.distributed import local_device, process_group, rank


def heal_checkpoint(
    source: Source,
    dense: Source,
    data: DataOptions,
    config: HealConfig,
    run: RunConfig,
    *,
    out: Path,
    overwrite: bool = False,
    is_tested: bool = False,
    show_progress: ShowProgress = no_progress,
) -> tuple[Healed, Evaluation | None]:
    """The healed model, which is written to `out`, and its evaluation against the dense one if it is asked for."""
    device = local_device(run.device)
    with process_group(device):
        overwrite = require_output(out, run, overwrite=overwrite)
        for each in (source, dense):
            require_apart(each, out)
        require_same_inputs(source, dense)
        config = replace(config, pooling=source.pooling)
        prepared = _prepare(source, data, config, device, is_tested)
        ensure_row(dense)
        teacher = with_padding(on_device(dense.load(), device), prepared.tokenizer)
        with show_progress() as advance:
            result = heal(
                prepared.model,
                teacher,
                text_for_passes(prepared, config, data.tokens),
                config,
                run=replace(run, progress=advance),
                judged_by=prepared.judging,
                pass_tokens=data.tokens,
            )
        evaluation = None
        if prepared.test is not None and rank() == 0:
            evaluation = evaluate_models(
                result.model,
                prepared,
                prepared.test,
                against=teacher,
                against_pooling=dense.pooling,
                show_progress=show_progress,
            )
        if rank() == 0:
            save(result, out, source=source, evaluation=evaluation, overwrite=overwrite)
        if run.checkpoint is not None:
            journal = FolderJournal(process_folder(run.checkpoint) / HEALING)
            remove_journal(journal, Path(run.checkpoint))
    return result, evaluation


def _prepare(source: Source, data: DataOptions, config: HealConfig, device: str | None, is_tested: bool) -> Prepared:
    """The pruned model with its text and test."""
    sample, test = data.sample_and_test(wants_test=is_tested, seed=config.seed)
    return prepare(
        source,
        sample,
        test and data.with_windows(test),
        PruneConfig(seed=config.seed, pooling=config.pooling),
        tokens=data.tokens,
        max_length=data.max_length,
        device=device,
        held_out=config.held_out,
    )
