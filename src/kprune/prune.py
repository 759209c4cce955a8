"""The loop: measure, search, refit, sublayer by sublayer, bottom to top (Section 3 of the paper)."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.budget import Budget, budget_named, total_flops
from kprune.checkpoint import Checkpoint, Done, fingerprint
from kprune.checkpoint import checkpoint as open_checkpoint
from kprune.errors import BadSample, KpruneError, NotFinite, NotSound, OutOfMemory, UnsupportedModel
from kprune.measure import Measured, References, measure
from kprune.memory import batch_by_batch, give_back
from kprune.observe import call
from kprune.outputs import OutputKind, kind_of
from kprune.pruned import Clock, Progress, Pruned, Step
from kprune.ranks import agreed, count, everyone, rank, share
from kprune.record import describe, record_of
from kprune.sample import Sample, examples_of, regroup
from kprune.search import best_share, search_groups
from kprune.settings import CRITERIA, DEFAULT_ALIGN, DEFAULT_CRITERION, Settings, settings_for
from kprune.streams import Fit, Streams, best_fit, leave
from kprune.sublayer import Sublayer, find

ACTIVATION_BYTES = 144 * 2**20
"""What one pass may keep for its way back. It sets the size of batches, so that memory is flat in depth."""
ACTIVATION_BYTES_ONCE = 208 * 2**20
"""The same where all is measured at the start: teacher and student have one stream then, and leave room."""
ACTIVATION_SHARE = 0.25
"""Of a large model's weights, that one pass may keep if this is more: batches of a few tokens would be slow."""
SOUND_RIDGE = 1e-4
"""The least ridge that makes a refit with fewer tokens than features sound."""
ANSWERED = 8
"""Batches, of all lengths, of which a finished student must have answers to the longest examples, as many of each."""
LEAST_WORSE, MOST_WORSE = 1e-4, 0.05
"""By as much as the ridge, within these bounds, a refit may be worse than none on the sample: so ridges are."""

T = TypeVar("T")

log = logging.getLogger(__name__)


def prune(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    *,
    reduction: float,
    criterion: str = DEFAULT_CRITERION,
    temperature: float = 2.0,
    rep_weight: float | None = None,
    head_weight: float | None = None,
    ridge: float | None = None,
    pooling: str = "mean",
    seed: int = 0,
    search: str = "global",
    refit: bool = True,
    budget: str | Budget = "flops",
    align: int = DEFAULT_ALIGN,
    refresh: int | None = None,
    offload: str | Path | None = None,
    checkpoint: str | Path | None = None,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> Pruned:
    """A smaller copy of `model` without `reduction` of its encoder's FLOPs, its remaining weights refitted.

    What is reduced may be another `budget`: `parameters` (the encoder's units'), or `Latency.budget`, time measured by
    `measure_latency`. Neurons stay or go by groups of `align`, best first, since odd widths are slow.

    `batches` are what a tokenizer returns for raw text; labels are not needed. The model itself is left as it was.

    `criterion` says how a unit's knowledge is measured: `compensated` by what is lost of the dense model's predictions
    once the other units are refitted, `fisher` by their Fisher information, `paper` by Equations 6 and 8, `released` on
    the scales of the authors' code; it is measured anew every `refresh` sublayers (0: only once).
    `temperature` is γ, `rep_weight` λ and `head_weight` μ of the paper. Left out, these take their criterion's values.
    `ridge`, relative to the mean diagonal of PᵀP, steadies the refit; a sample of fewer tokens than the widest
    sublayer has features is refused unless a ridge of 1e-4 or more is given. `pooling` matters to bare encoders only.

    `offload` says where the two streams are kept between passes, which is most of what a large sample takes: "host" is
    the memory of a GPU's host, any other name a folder on a disk. The result is the same. Where memory ends in a batch
    all the same, batches are halved.

    `checkpoint` names a folder in which finished sublayers are kept: a run that was killed goes on from there when it
    is started again, and comes to the same result. Delete the folder afterwards.

    The paper's ablations: `criterion="gradient"`, `search="uniform"`, and `refit=False` (one shot, nothing refitted).
    """
    pruner = Pruner(
        model,
        batches,
        criterion=criterion,
        temperature=temperature,
        rep_weight=rep_weight,
        head_weight=head_weight,
        ridge=ridge,
        pooling=pooling,
        seed=seed,
        search=search,
        refit=refit,
        budget=budget,
        align=align,
        refresh=refresh,
        offload=offload,
    )
    return pruner.prune(reduction, checkpoint=checkpoint, progress=progress)


@dataclass(frozen=True)
class Draft:
    """A student in the making."""

    student: PreTrainedModel
    sublayers: list[Sublayer]
    """The student's, bottom to top."""
    prices: list[Tensor]
    """What 0, 1, 2, … units of each sublayer cost."""
    dense: float
    """What all units that there were cost."""
    budget: float
    flops: float
    """Of all units that there were."""
    settings: Settings
    started: float

    @property
    def costs(self) -> list[float]:
        """What one unit of each sublayer costs, on average."""
        return [float(price[-1]) / (len(price) - 1) for price in self.prices]


class Pruner:
    """A model and a sample, ready to be pruned to any reduction: what all reductions share is done once.

    They share the sample, the teacher's predictions and the first measurement, made while nothing is removed yet.
    Arguments are those of `prune`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        batches: Iterable[Mapping[str, Tensor]],
        *,
        criterion: str = DEFAULT_CRITERION,
        temperature: float = 2.0,
        rep_weight: float | None = None,
        head_weight: float | None = None,
        ridge: float | None = None,
        pooling: str = "mean",
        seed: int = 0,
        search: str = "global",
        refit: bool = True,
        budget: str | Budget = "flops",
        align: int = DEFAULT_ALIGN,
        refresh: int | None = None,
        offload: str | Path | None = None,
    ) -> None:
        if not isinstance(model, PreTrainedModel):
            raise UnsupportedModel(
                f"cannot prune a {type(model).__name__}; pass a transformers model "
                "(of a SentenceTransformer, its first module's auto_model)."
            )
        sublayers = [sublayer for sublayer in find(model) if sublayer.units]
        self.settings = settings_for(
            reduction=0.0,
            criterion=criterion,
            temperature=temperature,
            rep_weight=rep_weight,
            head_weight=head_weight,
            ridge=ridge,
            pooling=pooling,
            seed=seed,
            search=search,
            refit=refit,
            budget=budget_named(budget).name,
            align=align,
            refresh=refresh,
            head_width=max((sublayer.width for sublayer in sublayers), default=1),
        )
        kind = kind_of(model, pooling=pooling)
        _require_finite(model)
        self.model = model
        self.budget = budget_named(budget)
        is_once = not (self.settings.refit and self.settings.refresh)
        room = ACTIVATION_BYTES_ONCE if is_once else ACTIVATION_BYTES
        self.sample = self._given = sample_for(model, kind, batches, room)
        _require_enough(self.sample, sublayers, ridge)
        self.teacher = _teacher_of(model)
        self.offload = offload
        self.references = References(self.teacher, kind, self.sample, offload=offload)
        self._first: list[Measured] | None = None

    def with_settings(self, **changes: Any) -> Pruner:
        """The same model and sample, and the teacher's predictions with them, with other settings.

        Where `criterion` changes, its own weights come with it, unless they are given too.
        """
        other = copy.copy(self)
        row = CRITERIA.get(changes.get("criterion", ""))
        if row is not None:
            width = max((sublayer.width for sublayer in find(self.teacher)), default=1)
            own = {"rep_weight": row.rep_weight, "head_weight": row.head_weight or width, "refresh": row.refresh}
            changes = {**own, **changes}
        other.settings = replace(self.settings, **changes)
        other._first = None
        return other

    def prune(
        self,
        reduction: float,
        *,
        checkpoint: str | Path | None = None,
        progress: Callable[[Progress], None] = lambda progress: None,
    ) -> Pruned:
        """A smaller copy of the model, as `prune` makes it."""
        settings = replace(self.settings, reduction=reduction)
        started = perf_counter()
        finished: dict[int, Done] = {}
        with ExitStack() as stack:
            kept = None
            if checkpoint is not None:
                identity = self._identity(self.draft(settings))
                kept = stack.enter_context(open_checkpoint(own_folder(checkpoint), identity))

            def attempt() -> Pruned:
                draft = replace(self.draft(settings), started=started)
                return self.finish(draft, self._steps(draft, finished, kept, progress))

            return self._with_room(attempt)

    def _with_room(self, attempt: Callable[[], T]) -> T:
        """What an attempt gives; where memory ends, it is made again with half as much in memory at a time."""
        while True:
            try:
                return attempt()
            except OutOfMemory:
                if everyone(len(self.sample.largest.example) == 1):
                    raise
            give_back()
            before = self.sample.largest.mask.numel()
            self.sample = self.sample.halved()
            after = self.sample.largest.mask.numel()
            log.warning("out of memory: going on with batches of %d tokens at most, not %d", after, before)
            self.references = References(self.teacher, self.references.kind, self.sample, offload=self.offload)
            self._first = None

    def _identity(self, draft: Draft) -> dict[str, Any]:
        """What tells one run from another."""
        batches = self._given.batches
        inputs = ((f"{n} {name}", value) for n, batch in enumerate(batches) for name, value in batch.inputs.items())
        labels = ((f"{n}", batch.labels) for n, batch in enumerate(batches) if batch.labels is not None)
        asked = ((f"{n}", batch.predicted) for n, batch in enumerate(batches) if batch.predicted is not None)
        return {
            "kprune": version("kprune"),
            **asdict(draft.settings),
            "model": fingerprint(self.model.state_dict().items()),
            "sample": fingerprint(chain(inputs, labels, asked)),
            "prices": fingerprint((f"{n}", price) for n, price in enumerate(draft.prices)),
        }

    def _steps(
        self,
        draft: Draft,
        finished: dict[int, Done],
        kept: Checkpoint | None,
        progress: Callable[[Progress], None],
    ) -> list[Step]:
        """Prune all sublayers, those first that are finished, or were by an earlier run; what is done is noted."""
        due = [self._is_due(i) for i in range(len(draft.sublayers))]
        clock = Clock(due, len(self.sample.batches), progress)
        streams = Streams(self.teacher, draft.student, self.sample, offload=self.offload)
        budget, fit = draft.budget, best_fit(self.settings.ridge) if self.settings.refit else leave
        known: list[Measured] = []  # of the sublayers from the target on, by the last measurement
        steps: list[Step] = []
        for i, target in enumerate(draft.sublayers):
            clock.start(i, target)
            streams.move_to(target)
            done = finished.get(i) or (kept.step(i, target) if kept else None)
            if not everyone(done is not None):
                done = None
            is_shared = i + 1 < len(due) and not due[i + 1]  # what is measured here serves the next one, too
            if due[i]:
                known = []
            if due[i] and done is not None and not is_shared:
                self._recall(draft, i, streams)
            elif due[i] and not _all_fit(draft, i, budget):
                known = self._know(draft, i, streams, clock.measured, kept if is_shared else None)
            if done is not None:
                keep = torch.zeros(target.units, dtype=torch.bool)
                keep[list(done.step.kept)] = True
                streams.put(target, keep, done.weight, done.bias)
            else:
                weights = known[0].token_weights if known else None
                done = self._remove(target, self._choose(draft, i, budget, known), weights, fit, streams, clock)
                finished[i] = done
                if kept:
                    kept.add_step(i, done)
            known = known[1:]
            budget -= float(draft.prices[i][target.units])
            steps.append(clock.stop(done.step))
        return steps

    def _remove(
        self,
        target: Sublayer,
        keep: Tensor,
        token_weights: list[Tensor] | None,
        fit: Fit,
        streams: Streams,
        clock: Clock,
    ) -> Done:
        units = target.units
        before, after = streams.remove(target, keep, fit, clock.refitted, token_weights)
        if after > 1.01 * before + min(max(self.settings.ridge, LEAST_WORSE), MOST_WORSE):
            raise NotSound(
                f"the refit of {target.name} is worse than none: the error of its stream is {after:.3g}, and was "
                f"{before:.3g} before; use a smaller ridge ({self.settings.ridge:g} now), or more text."
            )
        kept = tuple(keep.nonzero().squeeze(1).tolist())
        step = Step(target.index, target.kind, units, kept, before, after, clock.lap())
        return Done(step, target.consumer.weight, target.consumer.bias)

    def _recall(self, draft: Draft, number: int, streams: Streams) -> None:
        """Have the teacher's predictions as the measurement would have left them, which an earlier run has made."""
        if streams.are_equal:
            self._measure(draft, number, streams, lambda: None, only_references=True)

    def _is_due(self, number: int) -> bool:
        """Whether knowledge is measured, and the best units searched, at a sublayer."""
        if number == 0 or not self.settings.refit:
            return number == 0
        return bool(self.settings.refresh) and number % self.settings.refresh == 0

    def preview(self, reduction: float) -> list[int]:
        """How many units of each sublayer would stay by the first measurement alone; later ones change it a little."""
        draft = self.draft(replace(self.settings, reduction=reduction))
        budget = draft.budget

        def know() -> list[Measured]:
            streams = Streams(self.teacher, draft.student, self.sample, offload=self.offload)
            return self._know(draft, 0, streams, lambda: None)

        known = [] if _all_fit(draft, 0, budget) else self._with_room(know)
        left = []
        for i in range(len(draft.sublayers)):
            left.append(int(self._choose(draft, i, budget, known[i:]).sum()))
            budget -= float(draft.prices[i][left[-1]])
        return left

    def draft(self, settings: Settings) -> Draft:
        """A copy of the model to work on, and what it may keep."""
        started = perf_counter()
        student = copy.deepcopy(self.teacher).requires_grad_(False)
        sublayers = [sublayer for sublayer in find(student) if sublayer.units]
        length = self.sample.mean_length
        prices = [self.budget.price(sublayer, length) for sublayer in sublayers]
        dense = sum(float(price[-1]) for price in prices)
        flops = total_flops(sublayers, length)
        least = [float(price[size]) for price, size in zip(prices, group_sizes(sublayers, settings), strict=True)]
        budget = _budget(dense, least, settings)
        return Draft(student, sublayers, prices, dense, budget, flops, settings, started)

    def finish(self, draft: Draft, steps: Sequence[Step]) -> Pruned:
        """The result of a draft that is done."""
        _hand_over(draft.student, self.model)
        self._require_sound(draft.student)
        draft.student.train(self.model.training)
        pruned = Pruned(
            model=draft.student,
            steps=tuple(steps),
            settings=draft.settings,
            flops=(draft.flops, total_flops(draft.sublayers, self.sample.mean_length)),
            parameters=(self.model.num_parameters(), draft.student.num_parameters()),
            examples=self.sample.examples,
            tokens=self.sample.tokens,
            seconds=perf_counter() - draft.started,
        )
        _attach_record(pruned)
        return pruned

    @torch.no_grad()
    def _require_sound(self, student: PreTrainedModel) -> None:
        """Refuse a student that has no answer where the teacher has one, in the dtype that it will have."""
        batches = self.sample.batches
        are_answered = True
        with batch_by_batch():
            for batch in (batch.rows(slice(-ANSWERED, None)) for batch in batches[:: -(-len(batches) // ANSWERED)]):
                values = self.references.kind.read(call(student, batch), batch).values
                answered = values.isfinite().any(-1) & ~(values.isnan() | values.isposinf()).any(-1)
                are_answered &= bool(answered.all())
        if not everyone(are_answered):
            raise NotFinite(
                f"the pruned model's outputs are not finite (NaN or infinity) in {student.dtype}; "
                "remove less, use more text, or load the model in float32."
            )

    def _choose(self, draft: Draft, number: int, budget: float, known: Sequence[Measured]) -> Tensor:
        """A mask of the units that stay in a sublayer, by what is known of it and those above, and what is left."""
        sublayers, prices = draft.sublayers[number:], draft.prices[number:]
        if _all_fit(draft, number, budget):
            return torch.ones(sublayers[0].units, dtype=torch.bool)
        scores = [each.scores for each in known]
        if self.settings.search == "uniform":
            return agreed(best_share(scores[0].cpu(), 1.0 - draft.settings.reduction))
        return agreed(search_groups(scores, prices, group_sizes(sublayers, draft.settings), budget)[0])

    def _know(
        self, draft: Draft, number: int, streams: Streams, tick: Callable[[], None], kept: Checkpoint | None = None
    ) -> list[Measured]:
        """What is known of the sublayers from `number` on: measured now, or before and kept."""
        found = self._first if number == 0 else None
        if found is None and kept is not None:
            found = kept.measured(
                number, draft.sublayers[number:], [batch.real_tokens for batch in self.sample.batches]
            )
        if not everyone(found is not None):
            found = None
        if found is None:
            found = self._measure(draft, number, streams, tick)
            if kept is not None:
                kept.add_measured(number, found)
        if number == 0:
            self._first = found
        return found

    def _measure(
        self,
        draft: Draft,
        number: int,
        streams: Streams,
        tick: Callable[[], None],
        *,
        only_references: bool = False,
    ) -> list[Measured]:
        """Knowledge of the units in the sublayers that are left to prune."""
        found = measure(
            draft.student,
            draft.sublayers[number:],
            draft.costs[number:],
            streams.student,
            self.references,
            self.settings,
            is_teacher=streams.are_equal,
            only_references=only_references,
            tick=tick,
        )
        if not only_references:
            _require_knowledge([each.scores for each in found], self.settings)
        return found


def _all_fit(draft: Draft, number: int, budget: float) -> bool:
    """Whether nothing needs to go from the sublayers from `number` on, but for rounding."""
    return sum(float(price[-1]) for price in draft.prices[number:]) <= budget + 1e-9 * draft.dense


def group_sizes(sublayers: Sequence[Sublayer], settings: Settings) -> list[int]:
    """How many units of each sublayer stay or go together: `align` neurons, a single head."""
    return [min(settings.align, sublayer.units) if sublayer.kind == "ffn" else 1 for sublayer in sublayers]


def _teacher_of(model: PreTrainedModel) -> PreTrainedModel:
    """A model to work with, in float32 at least, that shares the given one's weights where it can."""
    tensors = list(chain(model.parameters(), model.buffers()))
    coarse = any(t.is_floating_point() and t.element_size() < 4 for t in tensors)
    shared = {} if coarse else {id(t): t for t in tensors}
    teacher: PreTrainedModel = copy.deepcopy(model, shared).eval()
    return teacher.float() if coarse else teacher


def _hand_over(student: PreTrainedModel, model: PreTrainedModel) -> None:
    """Give the student the dtypes and the trainability of the model that it was made from."""
    given = dict(chain(model.named_parameters(), model.named_buffers()))
    for name, tensor in chain(student.named_parameters(), student.named_buffers()):
        tensor.data = tensor.data.to(given[name].dtype)
        tensor.requires_grad_(given[name].requires_grad)
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise NotFinite(f"the refitted {name} does not fit into {tensor.dtype}; load the model in float32.")


def _attach_record(pruned: Pruned) -> None:
    config = pruned.model.config
    earlier = record_of(config)
    history = [*(earlier["history"] if earlier else []), pruned.summary()]
    record = describe(pruned.model, history)
    if record is not None:
        config.quantization_config = record


def sample_for(
    model: PreTrainedModel, kind: OutputKind, batches: Iterable[Mapping[str, Tensor]], room: int = ACTIVATION_BYTES
) -> Sample:
    """The batches, regrouped so that what a pass keeps for its way back fits the room, in bytes, or a large model's.

    Of several processes, each has its share of them; examples and tokens are those of all.
    """
    # What the backward pass needs of a layer: features twice, about eight vectors of the stream's width beside them.
    per_token = sum(2 * sublayer.features + 4 * sublayer.consumer.out_features for sublayer in find(model))
    if kind.is_vocabulary:
        per_token += 4 * model.config.vocab_size
    examples = examples_of(batches)
    tokens = max(room, int(ACTIVATION_SHARE * 4 * model.num_parameters())) // (4 * per_token)
    # Several batches for each process, so that all have about the same to do; one process has those of two.
    tokens = min(tokens, sum(len(example["input_ids"]) for example in examples) // (4 * max(count(), 2)))
    sample = regroup(
        examples,
        tokens=tokens,
        pad_id=model.config.pad_token_id or 0,
        device=model.device,
    )
    if count() == 1:
        return sample
    if len(sample.batches) < count():
        raise BadSample(
            f"the sample fills {len(sample.batches)} batches, too few for {count()} processes; "
            "use fewer processes or more text."
        )
    return replace(sample, batches=share(sample.batches))


def own_folder(checkpoint: str | Path) -> Path:
    """A checkpoint's folder, in which each of several processes has its own."""
    return Path(checkpoint) / f"process-{rank()}-of-{count()}" if count() > 1 else Path(checkpoint)


def _require_enough(sample: Sample, sublayers: Sequence[Sublayer], ridge: float | None) -> None:
    widest = max((sublayer.features for sublayer in sublayers), default=0)
    if sample.tokens >= widest:
        return
    if ridge is None or ridge < SOUND_RIDGE:
        raise BadSample(
            f"the sample has {sample.tokens} tokens, and the refit of {widest} features needs at least as many: "
            f"add {widest - sample.tokens} tokens or more (100,000 are usual), or a ridge of {SOUND_RIDGE:g} or more."
        )
    log.warning("%d tokens are few for the refit of %d features: the ridge decides much", sample.tokens, widest)


def _require_finite(model: PreTrainedModel) -> None:
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise NotFinite(f"the weight {name} has NaN or infinite entries; the checkpoint is damaged.")


def _require_knowledge(found: Sequence[Tensor], settings: Settings) -> None:
    if not any(bool(values.any()) for values in found):
        raise KpruneError(
            f"criterion {settings.criterion!r} with rep_weight {settings.rep_weight:g} finds no knowledge at all: its "
            "gradient vanishes while nothing is removed; use a rep_weight above 0, or the criterion 'compensated'."
        )


def _budget(dense: float, least: Sequence[float], settings: Settings) -> float:
    """What may be spent, of what all units cost; `least` is what a first group of each sublayer costs."""
    if not least:
        raise KpruneError("the model has no heads and no neurons left to prune.")
    budget = (1.0 - settings.reduction) * dense
    if budget < min(least):
        reachable = math.floor(1e6 * (1.0 - min(least) / dense)) / 1e6
        raise KpruneError(
            f"reduction {settings.reduction} would leave no unit at all; the largest that can be reached is "
            f"{reachable:.6f} while neurons stay by {settings.align} (align)."
        )
    return budget
