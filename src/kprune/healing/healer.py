"""Healing: train a pruned model toward the dense one, judged by held-out text, never worse than it was."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.config import HealConfig, RunConfig, combine_options
from kprune.errors import KpruneError, NotFinite, UnsupportedModel
from kprune.healing.heal_loss import backpropagate, held_out_loss
from kprune.healing.result import Healed
from kprune.healing.schedule import Schedule, with_rate
from kprune.healing.targets import HELD_OUT, Targets
from kprune.healing.text import Text, own_part, size_of, text_of
from kprune.healing.training import Training
from kprune.models.batches import Batch, Example
from kprune.models.native import history_of, set_history
from kprune.models.outputs import REGRESSION, kind_of
from kprune.models.trainable import have_same_streams
from kprune.pruning.finish import hand_over
from kprune.pruning.journal import HEALING, FolderJournal, fingerprint, process_folder
from kprune.pruning.model_checks import ordinary_batches
from kprune.pruning.progress import Progress
from kprune.pruning.result import Pruned
from kprune.pruning.teacher import teacher_of
from kprune.runtime.computation_mode import ordinary_mode
from kprune.runtime.distributed import all_reduce_sum, broadcast, world_size

log = logging.getLogger(__name__)


@ordinary_mode()
def heal(
    pruned: Pruned | PreTrainedModel,
    teacher: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    config: HealConfig | None = None,
    *,
    run: RunConfig | None = None,
    judged_by: Iterable[Mapping[str, Tensor]] | None = None,
    pass_tokens: int | None = None,
    **options: Any,
) -> Healed:
    """A copy of a pruned model whose weights are trained toward `teacher`, the dense model it was made from.

    `batches` are the output of a tokenizer or a processor; labels are not needed. Held-out text judges: the state with
    the least loss on it is returned, and the given weights if none is better. It is `judged_by`, which should be text
    that the pruning has not seen, or else a part of the batches. Neither model changes.

    Options are fields of `HealConfig` and `RunConfig`: `heal(pruned, model, batches, heal="5x", checkpoint="folder")`.
    A pass reads all batches, or `pass_tokens` tokens of them: after four passes, the next four read other text.
    """
    config, run = combine_options(config or HealConfig(), run, options)
    model = pruned.model if isinstance(pruned, Pruned) else pruned
    if isinstance(pruned, Pruned):
        config = replace(config, pooling=pruned.config.pooling)
    _require_pair(model, teacher, config)
    kind = kind_of(model, pooling=config.pooling)
    config = with_rate(config, is_embedding=not kind.is_distribution and kind.name != REGRESSION.name)
    text, examples = text_of(
        teacher, ordinary_batches(batches), judged_by and ordinary_batches(judged_by), config, pass_tokens
    )
    healer = Healer(model, teacher, text, config, run)
    healed = healer.heal(lambda: _identity(model, teacher, examples, config))
    _add_to_record(healed)
    if not isinstance(pruned, Pruned):
        return healed
    seconds = pruned.seconds + healed.seconds
    return replace(healed, pruned=replace(pruned, model=healed.model, seconds=seconds, healed=healed.summary()))


class Healer:
    """One run: the student in training, the teacher's targets, the text."""

    def __init__(
        self,
        model: PreTrainedModel,
        teacher: PreTrainedModel,
        text: Text,
        config: HealConfig,
        run: RunConfig,
    ) -> None:
        self.model, self.text, self.config, self.run = model, text, config, run
        self.teacher = teacher_of(teacher)
        self.kind = kind_of(model, pooling=config.pooling)
        self.targets = Targets(self.teacher, self.kind)
        self.schedule = Schedule(config, [len(part) for part in self.text.parts])
        self.training = Training(_float32_student(model))
        self.hidden_weight = config.hidden_weight if have_same_streams(model, teacher) else 0.0
        if self.hidden_weight != config.hidden_weight:
            log.warning("the two models have other layers or widths: their hidden states are not compared")

    def heal(self, identity: Callable[[], dict[str, Any]]) -> Healed:
        """Train until the budget is spent; Ctrl-C ends earlier. `identity` tells one run's journal from another's."""
        training, is_interrupted = self.training, False
        with ExitStack() as stack:
            journal = None
            if self.run.checkpoint is not None:
                folder = process_folder(self.run.checkpoint) / HEALING
                journal = stack.enter_context(FolderJournal.open(folder, identity()))
                entry = journal.read(HEALING)
                if entry is not None:
                    training.restore(*entry)
            if not training.is_started:
                training.start(self._judge())
            try:
                self._train(journal)
            except KeyboardInterrupt:
                if world_size() > 1:
                    raise
                is_interrupted = True
                log.warning("healing was interrupted after %d steps; the best state so far is kept", training.step)
        return self._result(is_interrupted)

    def _train(self, journal: FolderJournal | None) -> None:
        training, schedule = self.training, self.schedule
        fraction = schedule.fraction(training.step, training.seconds)
        self._report(fraction)
        places = schedule.places(training.step)
        started, before = perf_counter(), training.seconds
        while fraction < 1.0 and not training.is_hopeless:
            part, number = next(places)
            self._step((part, number), self.text.parts[part][number], schedule.rate(fraction))
            training.seconds = before + perf_counter() - started
            last, fraction = fraction, self._shared(schedule.fraction(training.step, training.seconds))
            if schedule.is_judged(last, fraction):
                training.judge(self._judge())
                if journal is not None:
                    journal.write(HEALING, *training.state())
            self._report(fraction)

    def _step(self, key: tuple[int, int], batch: Batch, rate: float) -> None:
        own = own_part(batch)
        if own is not None:
            target = self.targets.of(key, own, with_streams=self.hidden_weight > 0)
            backpropagate(self.training.student, own, target, self.targets, size_of(batch), self.hidden_weight)
        self.training.update(rate)

    def _judge(self) -> float:
        """The mean loss of the held-out examples."""
        total = torch.zeros((), dtype=torch.float64, device=self.model.device)
        for number, batch in enumerate(self.text.held_out):
            own = own_part(batch)
            if own is not None:
                target = self.targets.of((HELD_OUT, number), own, with_streams=False)
                total += held_out_loss(self.training.student, own, target, self.targets)
        all_reduce_sum([total])
        return float(total) / self.text.held_out_examples

    def _shared(self, fraction: float) -> float:
        """The fraction of process 0: clocks differ."""
        return float(broadcast(torch.tensor(fraction, dtype=torch.float64)))

    def _report(self, fraction: float) -> None:
        note = f"held-out {self.training.best_loss:.4f}"
        self.run.progress(Progress(min(fraction, 1.0), "healing", None, note))

    def _result(self, is_interrupted: bool) -> Healed:
        training, text = self.training, self.text
        if not training.first_loss < float("inf"):
            raise NotFinite("the pruned model's outputs on held-out text are not finite; prune it with more text.")
        after = self._rounded_loss()
        best_step = training.best_step if after < training.first_loss else 0
        if best_step:
            model = copy.deepcopy(training.student)
            hand_over(model, self.model)
        else:
            after = training.first_loss
            model = copy.deepcopy(self.model)
            log.warning("healing found no better weights on held-out text: the given ones are kept; use more text")
        read = [text.sizes[part] for part in self.schedule.parts_before(training.step)]
        return Healed(
            model=model.train(self.model.training),
            pruned=None,
            config=self.config,
            loss=(training.first_loss, after),
            steps=training.step,
            best_step=best_step,
            passes=training.step * len(text.parts) / max(1, sum(map(len, text.parts))),
            examples=sum(size.examples for size in read),
            tokens=sum(size.tokens for size in read),
            held_out_examples=text.held_out_examples,
            is_interrupted=is_interrupted,
            seconds=training.seconds,
        )

    def _rounded_loss(self) -> float:
        """The held-out loss of the best state, with weights as exact as the given model's dtype allows."""
        training = self.training
        given = dict(self.model.named_parameters())
        values = {name: value.to(given[name].dtype).to(value.dtype) for name, value in training.best.items()}
        training.load(values)
        is_rounded = any(not torch.equal(value, training.best[name]) for name, value in values.items())
        return self._judge() if is_rounded else training.best_loss


def _float32_student(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the model to train: at least float32, without dropout."""
    student: PreTrainedModel = copy.deepcopy(model).eval()
    is_coarse = any(each.is_floating_point() and each.element_size() < 4 for each in student.parameters())
    return student.float() if is_coarse else student


def _require_pair(model: Any, teacher: Any, config: HealConfig) -> None:
    """Raise unless both are transformers models with outputs of one kind, on one device."""
    for each in (model, teacher):
        if not isinstance(each, PreTrainedModel):
            raise UnsupportedModel(
                f"cannot heal with a {type(each).__name__}; pass the result of kprune.prune or a transformers model, "
                "and the dense transformers model."
            )
    kinds: list[Any] = [kind_of(each, pooling=config.pooling).name for each in (model, teacher)]
    sizes: list[Any] = [(each.config.vocab_size if "vocab_size" in each.config else None) for each in (model, teacher)]
    labels: list[Any] = [each.config.num_labels for each in (model, teacher)]
    found = {"output kind": kinds, "vocabulary": sizes, "number of labels": labels}
    for name, (ours, theirs) in found.items():
        if ours != theirs:
            raise KpruneError(
                f"the pruned model's {name} is {ours}, the dense model's {theirs}; pass the model it was pruned from."
            )
    if model.device != teacher.device:
        raise KpruneError(
            f"the pruned model is on {model.device}, the dense one on {teacher.device}; move one of them."
        )


def _identity(
    model: PreTrainedModel, teacher: PreTrainedModel, examples: Sequence[Example], config: HealConfig
) -> dict[str, Any]:
    """What distinguishes one healing from another, for its journal."""
    inputs = ((f"{n} {name}", value) for n, example in enumerate(examples) for name, value in example.items())
    return {
        "kprune": version("kprune"),
        **config.as_json(),
        "model": fingerprint(model.state_dict().items()),
        "teacher": fingerprint(teacher.state_dict().items()),
        "sample": fingerprint(inputs),
    }


def _add_to_record(healed: Healed) -> None:
    """Add the healing to the last pruning in the model's record, if it has one."""
    history = history_of(healed.model.config)
    if not history:
        return
    *earlier, last = history
    last = {**last, "healed": [*last.get("healed", []), healed.summary()]}
    set_history(healed.model.config, [*earlier, last])
