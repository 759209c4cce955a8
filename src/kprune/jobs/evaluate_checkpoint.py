"""Evaluate a model folder, alone or against another one."""

from __future__ import annotations

from kprune.checkpoints.source import Source
from kprune.data.tasks import Test
from kprune.errors import KpruneError
from kprune.evaluation.evaluator import Evaluation
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
    tokenizer = source.load_tokenizer()
    model = with_padding(on_device(source.load(), device), tokenizer)
    test = as_read_by(source, test, kind_of(model, pooling=source.pooling).name)
    limit = length_limit(source, max_length)
    prepared = Prepared(source, model, tokenizer, [], test, limit)
    return evaluate_models(
        model,
        prepared,
        test,
        against=None if against is None else with_padding(on_device(against.load(), device), tokenizer),
        against_pooling=None if against is None else against.pooling,
        show_progress=show_progress,
    )


def require_same_inputs(source: Source, other: Source) -> None:
    """Raise if two models do not read the same tokens for the same text."""
    if source.prompt != other.prompt:
        raise KpruneError(
            f"{source.name} and {other.name} have different default prompts ({source.prompt!r:.60} and "
            f"{other.prompt!r:.60}), so they read different texts; give both the same default_prompt_name and prompts."
        )
    ours, theirs = source.load_tokenizer().get_vocab(), other.load_tokenizer().get_vocab()
    if ours != theirs:
        raise KpruneError(
            f"{source.name} and {other.name} have different tokenizers ({len(ours)} and {len(theirs)} tokens), "
            "so the same text gives different tokens; compare models that share a tokenizer."
        )
