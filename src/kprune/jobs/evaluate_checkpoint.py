"""Evaluate a model folder, alone or against another one."""

from __future__ import annotations

from typing import Any

from kprune.checkpoints.processors import load_reader, settings_of
from kprune.checkpoints.source import Source
from kprune.data.processing import MediaReader
from kprune.data.tasks import Test
from kprune.errors import KpruneError
from kprune.evaluation.evaluator import Evaluation
from kprune.jobs.check_model import load_checked
from kprune.jobs.preparation import Prepared, as_read_by, length_limit, with_padding
from kprune.jobs.prune_checkpoint import ShowProgress, evaluate_models, no_progress
from kprune.models.outputs import kind_of
from kprune.runtime.devices import on_device


def evaluate_checkpoint(
    source: Source,
    test: Test,
    *,
    against: Source | None = None,
    max_length: int | None = None,
    device: str | None = None,
    show_progress: ShowProgress = no_progress,
) -> Evaluation:
    """The evaluation of a model folder on a test; `against` is another folder to compare with."""
    if against is not None:
        require_same_inputs(source, against)
    source.warn_of_unread_modules()
    tokenizer = load_reader(source)
    model = with_padding(on_device(load_checked(source)[0], device), tokenizer)
    test = as_read_by(source, test, kind_of(model, pooling=source.pooling).name)
    limit = length_limit(source, max_length)
    prepared = Prepared(source, model, tokenizer, [], test, limit)
    return evaluate_models(
        model,
        prepared,
        test,
        against=None if against is None else with_padding(on_device(load_checked(against)[0], device), tokenizer),
        against_pooling=None if against is None else against.pooling,
        show_progress=show_progress,
    )


def require_same_inputs(source: Source, other: Source) -> None:
    """Raise if two models do not read the same inputs for the same text, image or sound."""
    if source.prompt != other.prompt:
        raise KpruneError(
            f"{source.name} and {other.name} have different default prompts ({source.prompt!r:.60} and "
            f"{other.prompt!r:.60}), so they read different texts; give both the same default_prompt_name and prompts."
        )
    readers = load_reader(source), load_reader(other)
    if any(isinstance(each, MediaReader) for each in readers):
        _require_same_processor(source, other, *readers)
        return
    ours, theirs = (each.get_vocab() for each in readers)
    if ours != theirs:
        raise KpruneError(
            f"{source.name} and {other.name} have different tokenizers ({len(ours)} and {len(theirs)} tokens), "
            "so the same text gives different tokens; compare models that share a tokenizer."
        )


def _require_same_processor(source: Source, other: Source, ours: Any, theirs: Any) -> None:
    """Raise if two models prepare images or sounds in different ways."""
    if not (isinstance(ours, MediaReader) and isinstance(theirs, MediaReader)) or ours.inputs != theirs.inputs:
        raise KpruneError(f"{source.name} and {other.name} read different inputs; compare models of one kind.")
    mine, others = settings_of(ours), settings_of(theirs)
    different = [name for name in mine if name in others and mine[name] != others[name]]
    if different:
        name = different[0]
        raise KpruneError(
            f"{source.name} and {other.name} prepare their inputs differently ({name}: {mine[name]!r:.60} and "
            f"{others[name]!r:.60}); compare models that share a preprocessor_config.json."
        )
