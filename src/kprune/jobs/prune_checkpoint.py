"""The whole job on a prepared model: prune, further stages, test, save (`kprune.jobs.preparation` loads and samples).

The command line, `kprune compare`, the demo and `benchmarks/tasks.py` call `prune_checkpoint`. A stage takes the state
and returns the next one; a new stage after pruning is one more function in the list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.checkpoints.atomic import remove_leftovers, require_writable
from kprune.checkpoints.writer import save
from kprune.config import HealConfig, PruneConfig, RunConfig
from kprune.data.tasks import Test
from kprune.errors import NotFinite
from kprune.evaluation.evaluator import Evaluation, evaluate
from kprune.healing.healer import heal
from kprune.healing.schedule import PASSES_PER_PART
from kprune.jobs.preparation import Prepared, float32_copy, row_count, rows_from, token_count
from kprune.models.outputs import Prediction
from kprune.pruning.journal import FolderJournal, process_folder
from kprune.pruning.progress import Progress
from kprune.pruning.result import Pruned
from kprune.runtime.distributed import all_true, barrier, rank

MOST_CHANGES = 100
"""Examples with another answer that an evaluation keeps, for its page."""
MOST_PARTS = 8
"""Parts of the text that healing reads one after the other, at most; the text is tokenised before."""

Advance = Callable[[Progress], None]
ShowProgress = Callable[[], AbstractContextManager[Advance]]
"""Opens a progress bar for one phase of a job."""


def no_progress() -> AbstractContextManager[Advance]:
    return nullcontext(lambda progress: None)


@dataclass(frozen=True)
class State:
    """A job between two stages."""

    prepared: Prepared
    config: PruneConfig
    run: RunConfig = field(default_factory=RunConfig)
    show_progress: ShowProgress = no_progress
    heal: HealConfig | None = None
    """How the pruned model is healed; None: it is not."""
    pruned: Pruned | None = None
    evaluation: Evaluation | None = None
    notes: tuple[str, ...] = ()
    """Sentences for the model card and the terminal."""
    details: dict[str, Any] = field(default_factory=dict)
    """Further results of stages, as JSON."""
    out: Path | None = None

    @property
    def result(self) -> Pruned:
        """The pruned model, which the first stage makes."""
        assert self.pruned is not None
        return self.pruned


Stage = Callable[[State], State]


def prune_to_reduction(state: State) -> State:
    """Remove the share of the budget that the configuration names."""
    pruner = state.prepared.pruner(state.config, state.run)
    with state.show_progress() as advance:
        pruned = pruner.prune(state.config.reduction, checkpoint=state.run.checkpoint, progress=advance)
    return replace(state, pruned=pruned)


def heal_result(state: State) -> State:
    """Heal the pruned model, if the job asks for it and no earlier stage did."""
    if state.heal is None or state.result.healed is not None:
        return state
    with state.show_progress() as advance:
        return replace(state, pruned=healed(state, state.result, advance))


def healed(state: State, pruned: Pruned, advance: Advance) -> Pruned:
    """A pruned model, healed as the job says, on other text than its sample as far as there is."""
    if state.heal is None:
        return pruned
    prepared, run = state.prepared, replace(state.run, progress=advance)
    text = text_for_passes(prepared, state.heal, pruned.tokens)
    judges = prepared.judging or None
    result = heal(pruned, prepared.model, text, state.heal, run=run, judged_by=judges, pass_tokens=pruned.tokens)
    assert result.pruned is not None
    return result.pruned


def text_for_passes(prepared: Prepared, config: HealConfig, tokens: int) -> list[dict[str, Tensor]]:
    """Batches for passes of so many tokens each: text that the pruning has not seen, then the sample, as far as needed.

    The pruned model is fitted to its sample, so that other text teaches more.
    """
    parts = MOST_PARTS
    if config.passes is not None:
        parts = min(MOST_PARTS, math.ceil(config.passes / PASSES_PER_PART) or 1)
    seen = row_count(prepared.batches) + row_count(prepared.judging)
    known = token_count(prepared.batches) + token_count(prepared.judging)
    wanted = parts * tokens
    others = [] if prepared.draw_more is None else rows_from(prepared.draw_more(known + wanted), seen)
    missing = wanted - token_count(others)
    for batch in prepared.batches:
        if missing <= 0:
            break
        others.append(batch)
        missing -= token_count([batch])
    return others


def evaluate_result(state: State) -> State:
    """Evaluate the pruned model against the dense one, if there is a test and no evaluation yet."""
    test = state.prepared.test
    if test is None or state.evaluation is not None or rank() > 0:
        return state
    return replace(state, evaluation=evaluate_against_dense(state, state.result.model, state.show_progress))


def evaluate_against_dense(state: State, model: PreTrainedModel, show_progress: ShowProgress) -> Evaluation:
    """The evaluation of a model on the job's test, in float32, against the dense model."""
    prepared = state.prepared
    assert prepared.test is not None
    return evaluate_models(
        model,
        prepared,
        prepared.test,
        against=prepared.model,
        recalled=prepared.cached_predictions,
        show_progress=show_progress,
    )


def evaluate_models(
    model: PreTrainedModel,
    prepared: Prepared,
    test: Test,
    *,
    against: PreTrainedModel | None = None,
    against_pooling: str | None = None,
    recalled: dict[int, Prediction] | None = None,
    show_progress: ShowProgress = no_progress,
) -> Evaluation:
    """An evaluation in float32, with progress."""
    with show_progress() as advance:
        return evaluate(
            float32_copy(model),
            prepared.tokenizer,
            test,
            against=None if against is None else float32_copy(against),
            pooling=prepared.source.pooling,
            against_pooling=against_pooling,
            recalled=recalled,
            max_length=prepared.max_length,
            most_changes=MOST_CHANGES if against is not None else 0,
            progress=lambda fraction: advance(Progress(fraction, test.name, None)),
        )


def weight_megabytes(model: PreTrainedModel) -> float:
    """Megabytes of a model's weights, in the types that they have."""
    return sum(weights.numel() * weights.element_size() for weights in model.parameters()) / 1e6


def cast_to(dtype: str) -> Stage:
    """A stage that gives the pruned model's weights another type, such as float16."""

    def stage(state: State) -> State:
        model = state.result.model.to(getattr(torch, dtype))
        if not all(bool(weights.isfinite().all()) for weights in model.parameters()):
            raise NotFinite(f"a weight of the pruned model does not fit into {dtype}; use --dtype float32.")
        return state

    return stage


def save_to(out: Path, *, overwrite: bool, self_contained: bool = False) -> Stage:
    """A stage that writes the pruned model to a folder; process 0 writes."""

    def stage(state: State) -> State:
        journal = _journal(state.run)
        if rank() == 0:
            save(
                state.result,
                out,
                source=state.prepared.source,
                overwrite=overwrite,
                self_contained=self_contained,
                evaluation=state.evaluation,
                note=" ".join(state.notes),
                written=lambda staging: journal.add_result(staging, out) if journal else None,
            )
        if journal and state.run.checkpoint:
            barrier()  # the model is written
            remove_journal(journal, Path(state.run.checkpoint))
        return replace(state, out=out)

    return stage


def prune_checkpoint(
    prepared: Prepared,
    config: PruneConfig,
    run: RunConfig | None = None,
    *,
    prune: Stage = prune_to_reduction,
    stages: Sequence[Stage] = (),
    out: Path | None = None,
    overwrite: bool = False,
    self_contained: bool = False,
    show_progress: ShowProgress = no_progress,
    heal: HealConfig | None = None,
) -> State:
    """Prune a prepared model, run the stages, test the result, and save it if `out` is given.

    `prune` decides how much is removed: to a reduction, within a drop (`jobs.max_drop`) or to a speed-up
    (`jobs.speedup`). With `heal`, the pruned model is trained toward the dense one.
    """
    state = State(prepared, config, run or RunConfig(), show_progress, heal)
    saving = [save_to(out, overwrite=overwrite, self_contained=self_contained)] if out is not None else []
    for stage in (prune, heal_result, *stages, evaluate_result, *saving):
        state = stage(state)
    return state


def require_output(out: Path, run: RunConfig, *, overwrite: bool) -> bool:
    """Check, before any work, that the output folder can be written; returns whether it may be replaced.

    A run that was killed after it wrote `out`, and before it removed its journal, writes it again.
    """
    if rank() == 0:
        remove_leftovers(out)
    journal = _journal(run)
    may_replace = all_true(rank() > 0 or (journal is not None and journal.has_written(out))) or overwrite
    require_writable(out, overwrite=may_replace)
    return may_replace


def _journal(run: RunConfig) -> FolderJournal | None:
    return FolderJournal(process_folder(run.checkpoint)) if run.checkpoint else None


def remove_journal(journal: FolderJournal, folder: Path) -> None:
    """Delete the journal, every process its own part."""
    journal.remove()
    barrier()
    if rank() == 0 and folder.exists():
        with suppress(OSError):  # the folder has other files
            folder.rmdir()
