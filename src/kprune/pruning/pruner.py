"""The loop: measure, search, refit, sublayer by sublayer, bottom to top (Section 3 of the paper)."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.config import PruneConfig, RunConfig, combine_options
from kprune.errors import KpruneError, OutOfMemory, UnsupportedModel
from kprune.models.batches import as_batches
from kprune.models.families import family_of
from kprune.models.outputs import CAUSAL_LM, OutputKind, kind_of
from kprune.models.resize import drop_zero_bias
from kprune.models.row_proof import needs_proof, prove_row, recall_row
from kprune.models.sublayer import Sublayer, find
from kprune.pruning.budgets import budget_named
from kprune.pruning.finish import attach_record, hand_over, require_finite_outputs
from kprune.pruning.journal import FolderJournal, Journal, fingerprint, process_folder
from kprune.pruning.knowledge_pruning import KPrune, preview
from kprune.pruning.method import Method
from kprune.pruning.model_checks import ordinary_batches, require_prunable, without_inference_tensors
from kprune.pruning.progress import Clock, Progress
from kprune.pruning.registry import METHODS, resolve
from kprune.pruning.result import Outcome, Pruned, Step
from kprune.pruning.run import Run, Shared, mask_of, prices_of
from kprune.pruning.sample_rank import warn_of_uniform_text
from kprune.pruning.sampling import require_enough, require_finite_weights, sample_for
from kprune.pruning.streams import Streams
from kprune.pruning.teacher import TeacherPredictions, teacher_of
from kprune.runtime.computation_mode import ordinary_mode
from kprune.runtime.distributed import all_true
from kprune.runtime.memory import release_memory
from kprune.runtime.tensor_store import TensorStore, open_store

T = TypeVar("T")

log = logging.getLogger(__name__)


def prune(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    config: PruneConfig | None = None,
    *,
    run: RunConfig | None = None,
    **options: Any,
) -> Pruned:
    """A smaller copy of `model`, without `reduction` of its layers' FLOPs, its remaining weights refitted.

    `batches` are the output of a tokenizer or a processor; labels are not needed. The model itself does not change.

    Options are fields of `PruneConfig` and `RunConfig`, as objects or as keywords: `prune(model, batches,
    reduction=0.6, checkpoint="folder")`. A field that is None takes the default of its criterion. A sample with fewer
    tokens than the widest sublayer has features needs a `ridge` of 1e-4 or more. `budget` may be a name or a `Budget`,
    such as `Latency.budget`. `offload` is "host" (the memory of a GPU's host) or a folder on disk. `checkpoint` names a
    folder for finished sublayers: a killed run continues from there, with the same result; delete it afterwards.
    """
    return Pruner(model, batches, config, run=run, **options).prune()


class Pruner:
    """A model and a sample, ready to be pruned to any reduction; arguments are those of `prune`.

    Runs share the sample, the teacher's predictions and the first measurement, made while nothing is removed.
    """

    @ordinary_mode()
    def __init__(
        self,
        model: PreTrainedModel,
        batches: Iterable[Mapping[str, Tensor]],
        config: PruneConfig | None = None,
        *,
        run: RunConfig | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(model, PreTrainedModel):
            raise UnsupportedModel(
                f"cannot prune a {type(model).__name__}; pass a transformers model "
                "(of a SentenceTransformer, its first module's auto_model)."
            )
        self.requested, self.run_config = combine_options(config or PruneConfig(), run, options)
        _require_device(model, self.run_config.device)
        if needs_proof(model):
            require_finite_weights(model)
            batches = list(as_batches(batches))
            prove_row(model, batches, pooling=self.requested.pooling)
        recall_row(model)
        require_prunable(model)
        model = without_inference_tensors(model)
        sublayers = [sublayer for sublayer in find(model) if sublayer.units]
        kind = kind_of(model, pooling=self.requested.pooling)
        self.config = self._resolved(sublayers, kind)
        if family_of(model.config).has_cache:
            log.warning(
                "support of %s is experimental: compare the result with the dense model", model.config.model_type
            )
        require_finite_weights(model)
        self.model = model
        teacher = teacher_of(model)
        sample = sample_for(teacher, kind, ordinary_batches(batches), self.config)
        require_enough(sample, sublayers, self.requested.ridge)
        warn_of_uniform_text(teacher, sample)
        self._given = sample
        predictions = TeacherPredictions(teacher, kind, sample, offload=self.run_config.offload)
        self.shared = Shared(teacher, sample, predictions)

    def with_config(self, **changes: Any) -> Pruner:
        """The same model, sample and teacher's predictions with other settings.

        Settings that were left to the criterion follow a new `criterion`; explicit ones stay.
        """
        other = copy.copy(self)
        other.requested, other.run_config = combine_options(self.requested, self.run_config, changes)
        other.config = other._resolved(find(self.model), self.shared.predictions.kind)
        other.shared = replace(self.shared, first=None, gradients=None)
        return other

    def keep_targets(self, store: TensorStore | None) -> None:
        """Keep the teacher's streams after every sublayer in a store: further runs then make no pass of the teacher.

        They are as many numbers as tokens × hidden size × sublayers. None forgets them.
        """
        self.shared.targets = store

    @ordinary_mode()
    def prune(
        self,
        reduction: float | None = None,
        *,
        checkpoint: str | Path | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Pruned:
        """A smaller copy of the model; arguments replace those of the configuration."""
        config = self.config if reduction is None else replace(self.config, reduction=reduction)
        checkpoint = checkpoint or self.run_config.checkpoint
        progress = progress or self.run_config.progress
        started = perf_counter()
        with ExitStack() as stack:
            journal = Journal()
            if checkpoint is not None:
                folder = process_folder(checkpoint)
                journal = stack.enter_context(FolderJournal.open(folder, self._identity(config)))
            method, steps = self._with_smaller_batches(lambda: self._run(config, journal, progress))
            return self._result(method, steps, started)

    with_settings = with_config
    """The name of `with_config` before version 0.2."""

    @property
    def settings(self) -> PruneConfig:
        """The name of `config` before version 0.2."""
        return self.config

    @ordinary_mode()
    def preview(self, reduction: float) -> list[int]:
        """Units of each sublayer that the first measurement alone would keep; later measurements change it a little."""
        if self.config.method != KPrune.name:
            raise KpruneError(f"the method {self.config.method!r} has no preview; use the method {KPrune.name!r}.")
        config = replace(self.config, reduction=reduction)

        def attempt() -> list[int]:
            run = Run(self.shared, config, budget_named(config.budget))
            method = KPrune(run, Journal(), lambda: None)
            return preview(method, self._streams(method))

        return self._with_smaller_batches(attempt)

    @property
    def reachable(self) -> float:
        """The share of the budget that a reduction must stay below."""
        if not self.config.native:
            return 1.0
        run = Run(self.shared, replace(self.config, reduction=0.0), budget_named(self.config.budget))
        assert run.native_search is not None
        return 1.0 - run.native_search.least / run.dense

    def _run(
        self, config: PruneConfig, journal: Journal, progress: Callable[[Progress], None]
    ) -> tuple[Method, list[Step]]:
        """The loop over sublayers; streams are freed when it returns."""
        journal.restore_predictions(self.shared.predictions)
        run = Run(self.shared, config, budget_named(config.budget))
        method = METHODS[config.method](run, journal, lambda: clock.batch_measured())
        clock = Clock(method.is_measured, len(self.shared.sample.batches), progress, training=method.training_work)
        streams = self._streams(method)
        steps: list[Step] = []
        for number, target in enumerate(run.sublayers):
            clock.start(number, target)
            streams.advance_to(target)
            outcome = journal.recall(number, target)
            method.prepare(number, streams, is_recalled=outcome is not None)
            if outcome is None:
                outcome = _remove(number, target, method, streams, clock)
                journal.add(number, outcome)
            else:
                keep = mask_of(outcome.step.kept, target.units)
                streams.restore(target, keep, outcome.weight, outcome.bias)
                method.restore(outcome.method_state)
            run.spend(number, target.units)
            steps.append(outcome.step)
            clock.finish(outcome.step)
        del streams
        method.finish(clock.trained)
        return method, steps

    def _streams(self, method: Method) -> Streams:
        target, are_equal = method.target_model()
        run, offload = method.run, self.run_config.offload
        targets = self.shared.targets if target is self.shared.teacher else None
        return Streams(target, run.student, self.shared.sample, are_equal=are_equal, offload=offload, targets=targets)

    def _result(self, method: Method, steps: list[Step], started: float) -> Pruned:
        run, sample, student = method.run, self.shared.sample, method.run.student
        for sublayer in run.sublayers:
            drop_zero_bias(sublayer)
        hand_over(student, self.model)
        require_finite_outputs(student, sample, self.shared.predictions.kind)
        student.train(self.model.training)
        pruned = Pruned(
            model=student,
            steps=tuple(steps),
            config=run.config,
            flops=(run.dense_flops, method.flops()),
            parameters=(self.model.num_parameters(), student.num_parameters()),
            examples=sample.examples,
            tokens=sample.tokens,
            seconds=perf_counter() - started,
            native=run.native,
        )
        attach_record(pruned)
        return pruned

    def _with_smaller_batches(self, attempt: Callable[[], T]) -> T:
        """The result of an attempt; if memory runs out, it is repeated with batches of half the size."""
        while True:
            try:
                return attempt()
            except OutOfMemory:
                if all_true(len(self.shared.sample.largest.example) == 1):
                    raise
            release_memory()
            before = self.shared.sample
            sample = before.halved()
            log.warning(
                "out of memory: continuing with batches of at most %d tokens, not %d",
                sample.largest.mask.numel(),
                before.largest.mask.numel(),
            )
            kind, offload = self.shared.predictions.kind, self.run_config.offload
            predictions = TeacherPredictions(self.shared.teacher, kind, sample, offload=offload)
            targets = None if self.shared.targets is None else open_store(offload)
            self.shared = Shared(self.shared.teacher, sample, predictions, targets=targets)

    def _resolved(self, sublayers: list[Sublayer], kind: OutputKind) -> PruneConfig:
        head_width = max((sublayer.width for sublayer in sublayers), default=1)
        return resolve(self.requested, head_width, is_causal=kind.name == CAUSAL_LM.name)

    def _identity(self, config: PruneConfig) -> dict[str, Any]:
        """What distinguishes one run from another, for the journal."""
        batches = self._given.batches
        inputs = ((f"{n} {name}", value) for n, batch in enumerate(batches) for name, value in batch.inputs.items())
        labels = ((f"{n}", batch.labels) for n, batch in enumerate(batches) if batch.labels is not None)
        predicted = ((f"{n}", batch.predicted) for n, batch in enumerate(batches) if batch.predicted is not None)
        prices = prices_of(find(self.shared.teacher), budget_named(config.budget), self.shared.sample.mean_length)
        return {
            "kprune": version("kprune"),
            **config.as_json(),
            "model": fingerprint(self.model.state_dict().items()),
            "sample": fingerprint(chain(inputs, labels, predicted)),
            "prices": fingerprint((f"{n}", price) for n, price in enumerate(prices)),
        }


def _require_device(model: PreTrainedModel, device: str | None) -> None:
    """Raise if the model is not on the device that the run names: a run follows its model."""
    if device is not None and torch.device(device).type != model.device.type:
        raise KpruneError(f"the model is on {model.device}, but device is {device!r}; move the model there first.")


def _remove(number: int, target: Sublayer, method: Method, streams: Streams, clock: Clock) -> Outcome:
    """Choose the units of a sublayer that stay, remove the rest, and fit the consumer."""
    choice, units = method.choose(number), target.units
    before, after = streams.remove(
        target,
        choice.keep,
        method.fit,
        clock.batch_refitted,
        choice.token_weights,
        in_halves=method.is_cross_validated,
    )
    method.check(target, before, after)
    kept = tuple(choice.keep.nonzero().squeeze(1).tolist())
    step = Step(target.index, target.kind, units, kept, before, after, clock.seconds)
    return Outcome(step, target.consumer.weight, target.consumer.bias, method.state)
