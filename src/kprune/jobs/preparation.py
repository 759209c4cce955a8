"""Load a model and its data: what all runs of a job share."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.checkpoints.processors import load_reader
from kprune.checkpoints.source import Source
from kprune.config import DEFAULT_TOKENS, PruneConfig, RunConfig
from kprune.data.calibration import draw, longest_input
from kprune.data.labels import training_labels
from kprune.data.packing import BLOCK_TOKENS
from kprune.data.processing import MediaReader, draw_media
from kprune.data.rankings import are_rankings, rows_of_rankings
from kprune.data.rows import Row
from kprune.data.tasks import EMBEDDING, Test, with_prompt
from kprune.errors import BadSample
from kprune.evaluation.evaluator import check_compatible
from kprune.jobs.check_model import EXAMPLES, load_checked
from kprune.jobs.data_options import DataOptions
from kprune.models.families import family_of
from kprune.models.family import Family
from kprune.models.outputs import CAUSAL_LM, CLASSIFIERS, MASKED_LM, QUESTION_ANSWERING, Prediction, kind_of
from kprune.pruning.pruner import Pruner
from kprune.pruning.registry import wants_labels
from kprune.runtime.devices import on_device

log = logging.getLogger(__name__)


@dataclass
class Prepared:
    """A loaded model with its calibration batches and its test."""

    source: Source
    model: PreTrainedModel
    tokenizer: Any
    batches: list[dict[str, Tensor]]
    test: Test | None
    max_length: int
    """Inputs of the test are truncated here."""
    cached_predictions: dict[int, Prediction] = field(default_factory=dict)
    """Outputs of the dense model on the test, computed once for all runs."""
    proposed: Family | None = None
    """The row that was proposed for the model, because the table has none for its type."""
    judging: list[dict[str, Tensor]] = field(default_factory=list)
    """Batches that judge a healing; the sample has none of them."""
    draw_more: Callable[[int], list[dict[str, Tensor]]] | None = None
    """Draws up to so many tokens: those of the sample, those that judge, then others. None: there are no others."""
    _pruners: dict[PruneConfig, Pruner] = field(default_factory=dict)

    def pruner(self, config: PruneConfig, run: RunConfig) -> Pruner:
        """A pruner with these settings; all of them share the sample and the teacher's predictions."""
        key = replace(config, reduction=0.0)
        if key not in self._pruners:
            if self._pruners:
                first = next(iter(self._pruners.values()))
                self._pruners[key] = first.with_config(
                    **{each.name: getattr(config, each.name) for each in fields(config)}
                )
            else:
                self._pruners[key] = Pruner(self.model, self.batches, config, run=run)
        self._pruners[key].run_config = run
        return self._pruners[key]


def prepare(
    source: Source,
    sample: Test,
    test: Test | None,
    config: PruneConfig,
    *,
    tokens: int = DEFAULT_TOKENS,
    max_length: int | None = None,
    device: str | None = None,
    with_labels: bool = False,
    in_float32: bool = False,
    held_out: float = 0.0,
) -> Prepared:
    """Load the model, check that it fits the test, and draw the calibration batches.

    `held_out` is the share of tokens, relative to the sample's, that judge a healing.
    """
    texts = [" ".join(row) for row in sample.rows[:EXAMPLES] if all(isinstance(part, str) for part in row)]
    loaded, proposed = load_checked(source, texts)
    tokenizer = load_reader(source)
    source.warn_of_unread_modules()
    model = with_padding(on_device(loaded, device), tokenizer)
    if in_float32:
        model = model.float()
    kind = kind_of(model, pooling=source.pooling)
    sample = as_read_by(source, sample, kind.name)
    if test is not None:
        test = as_read_by(source, test, kind.name)
        check_compatible(model, tokenizer, test, pooling=source.pooling)
    rows = rows_read(sample, kind.name)
    labels = training_labels(sample, kind.name, model.config) if with_labels else None
    if isinstance(tokenizer, MediaReader):
        reader = tokenizer.for_model(model, max_length)
        batches = draw_media(rows, reader, tokens=tokens, seed=config.seed, labels=labels)
        limit = length_limit(source, max_length)
        return _with_judging(Prepared(source, model, tokenizer, batches, test, limit, proposed=proposed), held_out)
    is_causal = kind.name == CAUSAL_LM.name
    draw_up_to = partial(
        draw,
        rows,
        tokenizer,
        max_length=length_limit(
            source, max_length or (BLOCK_TOKENS if is_causal else None), longest_input(tokenizer, model.config)
        ),
        seed=config.seed,
        masked=kind.name == MASKED_LM.name,
        packed=is_causal,
        labels=labels,
    )
    batches = draw_up_to(tokens=tokens)
    # Blocks of the sample and windows of the test are cut independently.
    limit = length_limit(source, None if is_causal else max_length)
    prepared = Prepared(source, model, tokenizer, batches, test, limit, proposed=proposed)
    prepared.draw_more = lambda most: draw_up_to(tokens=most, is_most=True)
    return _with_judging(prepared, held_out)


def prepare_from(
    source: Source,
    data: DataOptions,
    config: PruneConfig,
    *,
    wants_test: bool,
    device: str | None = None,
    held_out: float = 0.0,
) -> Prepared:
    """The model with the sample and the test that the options name; data are read before weights."""
    sample, test = data.sample_and_test(wants_test=wants_test, seed=config.seed)
    return prepare(
        source,
        sample,
        test and data.with_windows(test),
        config,
        tokens=data.tokens,
        max_length=data.max_length,
        device=device,
        with_labels=wants_labels(config),
        held_out=held_out,
    )


def _with_judging(prepared: Prepared, held_out: float) -> Prepared:
    """The job with batches that judge a healing: beyond the sample, or else a part that the sample then lacks.

    A pruned model is fitted to its sample, and seems better on it than it is.
    """
    count, tokens = row_count(prepared.batches), token_count(prepared.batches)
    title, model = prepared.source.title, type(prepared.model).__name__
    log.info("%s is a %s; its sample has %d tokens in %d inputs", title, model, tokens, count)
    if not held_out:
        return prepared
    if prepared.draw_more is not None:
        beyond = rows_from(prepared.draw_more(math.ceil((1.0 + held_out) * tokens)), count)
        if token_count(beyond) >= 0.5 * held_out * tokens:
            prepared.judging = beyond
            return prepared
    cut = count - max(1, round(held_out * count))
    if cut < 1:
        raise BadSample("healing needs two examples or more, one of which is held out; pass more text.")
    prepared.judging, prepared.draw_more = rows_from(prepared.batches, cut), None
    prepared.batches = rows_from(prepared.batches, 0, cut)
    return prepared


def row_count(batches: list[dict[str, Tensor]]) -> int:
    """Rows of all batches."""
    return sum(len(next(iter(batch.values()))) for batch in batches)


def token_count(batches: list[dict[str, Tensor]]) -> int:
    """Real tokens of all batches; of images and sounds, their number."""
    masks = [batch.get("attention_mask") for batch in batches]
    return sum(len(next(iter(b.values()))) if m is None else int(m.sum()) for b, m in zip(batches, masks, strict=True))


def rows_from(batches: list[dict[str, Tensor]], start: int, end: int | None = None) -> list[dict[str, Tensor]]:
    """The rows of batches from number `start` up to `end`."""
    found, first = [], 0
    for batch in batches:
        rows = len(next(iter(batch.values())))
        own = slice(max(start - first, 0), None if end is None else max(end - first, 0))
        if len(range(rows)[own]):
            found.append({name: value[own] for name, value in batch.items()})
        first += rows
    return found


def with_padding(model: PreTrainedModel, tokenizer: Any) -> PreTrainedModel:
    """The model; a classifier on a decoder finds a text's last token by the padding token, and gets one if it has none.

    It is the tokenizer's, or else the end-of-text token.
    """
    config = model.config
    is_classifier = type(model).__name__.endswith(CLASSIFIERS) and family_of(config).has_cache
    if not is_classifier or getattr(config, "pad_token_id", None) is not None:
        return model
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    if pad is None:
        raise BadSample(
            f"neither the {type(model).__name__} nor its tokenizer has a padding or end-of-text token, so that texts "
            "cannot be batched; set pad_token_id in config.json."
        )
    config.pad_token_id = pad
    name = tokenizer.convert_ids_to_tokens(pad)
    log.warning("the config of the %s has no pad_token_id; it is set to %d, %s", type(model).__name__, pad, name)
    return model


def as_read_by(source: Source, test: Test, kind: str) -> Test:
    """The test's texts as the folder's library passes them to the model: an embedder's with its default prompt.

    A model of pairs, a reranker or a reader of questions, gets a warning if rows have one text.
    """
    is_reranker = source.sentence_class == "CrossEncoder"
    has_single_texts = len((test.rows or [()])[0]) == 1 and not are_rankings(test.references)
    if (is_reranker or kind == QUESTION_ANSWERING.name) and has_single_texts:
        log.warning(
            "%s is a %s, and %s has one text per row: its outputs for single texts mean nothing; name two columns",
            source.title,
            "reranker" if is_reranker else "model for question answering",
            test.name,
        )
    if kind != EMBEDDING:
        if source.prompt:
            log.warning("%s has the default prompt %r, which is not applied to its texts", source.title, source.prompt)
        return test
    return with_prompt(test, source.prompt)


def rows_read(test: Test, kind: str) -> list[Row]:
    """What a model of one kind reads of a test: an embedder single texts, a reranker pairs of query and passage."""
    if are_rankings(test.references):
        return rows_of_rankings(test.rows, test.references, in_pairs=kind != EMBEDDING)
    return [(text,) for row in test.rows for text in row] if kind == EMBEDDING else list(test.rows)


def length_limit(source: Source, *others: int | None) -> int:
    """The length at which inputs are truncated: the smallest of all limits."""
    return min(limit for limit in (source.max_length, *others, 10**9) if limit is not None)


def float32_copy(model: PreTrainedModel) -> PreTrainedModel:
    """The model itself, or a float32 copy: half precision is slow and inexact on a CPU."""
    return model if model.dtype == torch.float32 else copy.deepcopy(model).float()
