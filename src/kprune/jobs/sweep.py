"""kprune sweep: several reductions from one measurement; quality, size and time of each, one JSON line per point.

The results file is the only state: a run that is stopped or killed continues when it is started again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import PreTrainedModel

from kprune.checkpoints.names import short_name
from kprune.config import HealConfig, PruneConfig, RunConfig
from kprune.deploy.runtimes import runtime_named
from kprune.deploy.timing import bind_inputs, random_inputs, time_interleaved
from kprune.errors import KpruneError
from kprune.jobs.grid import model_source
from kprune.jobs.kept_targets import kept_targets
from kprune.jobs.preparation import Prepared, float32_copy, token_count
from kprune.jobs.prune_checkpoint import State, evaluate_against_dense, healed, no_progress, weight_megabytes
from kprune.jobs.results import append_result, read_results
from kprune.jobs.sweep_choice import drop_of
from kprune.pruning.journal import fingerprint
from kprune.pruning.progress import Progress
from kprune.pruning.pruner import Pruner
from kprune.pruning.result import Pruned
from kprune.runtime.devices import torch_threads

REDUCTIONS = (0.2, 0.32, 0.44, 0.56, 0.68, 0.8)
"""The usual reductions of a sweep."""

Line = dict[str, Any]
Advance = Callable[[Progress], None]


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep tries, and how it times the models."""

    reductions: tuple[float, ...] = REDUCTIONS
    heal: HealConfig | None = None
    """How every pruned model is also healed; None: it is not."""
    shape: tuple[int, int] = (8, 128)
    """Batch and length of the timed inputs."""
    threads: int | None = None
    seconds: float = 1.0
    """Seconds of timing per model."""

    def __post_init__(self) -> None:
        if not self.reductions:
            raise KpruneError("a sweep needs at least one reduction; pass --reduction 0.5.")
        for reduction in self.reductions:
            PruneConfig(reduction=reduction)  # checks its range
        object.__setattr__(self, "reductions", tuple(sorted(set(self.reductions))))

    @property
    def cells(self) -> list[tuple[float, bool]]:
        """Every reduction, and whether the model is healed."""
        healings = (False,) if self.heal is None else (False, True)
        return [(reduction, is_healed) for reduction in self.reductions for is_healed in healings]


def sweep(
    prepared: Prepared,
    config: PruneConfig,
    plan: SweepPlan,
    path: Path,
    *,
    run: RunConfig | None = None,
    command: str = "",
    advance: Advance = lambda progress: None,
    finished: Callable[[Line], None] = lambda line: None,
) -> list[Line]:
    """The lines of a sweep: the header, then a line per point. Points that the file has are not computed again.

    `advance` gets the progress of all points together, `finished` each new line.
    """
    if prepared.model.main_input_name == "input_ids":
        random_inputs(prepared.model.config, *plan.shape, prepared.model.device)  # raises if they are too long
    header = _header(prepared, config, plan, command)
    lines = _lines_of(path, header)
    if not lines:
        path.parent.mkdir(parents=True, exist_ok=True)
        append_result(path, header)
    done = {(line["reduction"], line["healed"]) for line in lines[1:]}
    missing = [reduction for reduction in plan.reductions if not {c for c in plan.cells if c[0] == reduction} <= done]
    state = State(prepared, config, run or RunConfig(), heal=plan.heal)
    if missing:
        pruner = prepared.pruner(config, state.run)
        with kept_targets(pruner, state.run, several=len(missing) > 1):
            for number, reduction in enumerate(missing):
                share = _Share(advance, number, len(missing), f"{reduction:.0%} removed")
                for line in _run(state, pruner, plan, reduction, share, is_done=(reduction, False) in done):
                    append_result(path, line)
                    finished(line)
    return _wanted(_lines_of(path, header), plan)


def read_sweep(path: Path) -> list[Line]:
    """The header and the points of a sweep's file, the points by reduction."""
    lines = read_results(path)
    header, *points = lines or [{}]
    names = {"reduction", "healed", "fidelity", "drop", "kept", "flops", "parameters", "megabytes"}
    if not is_header(header) or not all(isinstance(point, dict) and names <= set(point) for point in points):
        raise KpruneError(f"{path} is not the file of a kprune sweep; name another file.")
    return [header, *sorted(points, key=lambda point: (point["healed"], point["reduction"]))]


def is_header(line: Any) -> bool:
    """Whether a line begins the file of a sweep."""
    return isinstance(line, dict) and line.get("kind") == "sweep" and isinstance(line.get("identity"), dict)


def _header(prepared: Prepared, config: PruneConfig, plan: SweepPlan, command: str) -> Line:
    """The first line: what is swept, all that the points depend on, and the dense model's size."""
    test, model = prepared.test, prepared.model
    assert test is not None
    rows = hashlib.sha256(repr((test.rows, test.references, test.windows)).encode()).hexdigest()
    tensors = ((f"{n} {name}", value) for n, batch in enumerate(prepared.batches) for name, value in batch.items())
    settings = {name: value for name, value in config.as_json().items() if name != "reduction"}
    identity = {
        "model": model_source(str(prepared.source.folder)),
        "sample": fingerprint(tensors)[:12],
        "test": rows[:12],
        "settings": settings,
        "heal": None if plan.heal is None else plan.heal.as_json(),
        "shape": list(plan.shape),
        "threads": plan.threads or torch.get_num_threads(),
    }
    return {
        "kind": "sweep",
        "kprune": version("kprune"),
        "model": short_name(prepared.source.name),
        "model_type": model.config.model_type,
        "test": test.name,
        "tokens": token_count(prepared.batches),
        "parameters": model.num_parameters(),
        "megabytes": weight_megabytes(model),
        "command": command,
        "identity": identity,
    }


def _lines_of(path: Path, header: Line) -> list[Line]:
    """The lines of an earlier run; raises if they are of something else."""
    if not read_results(path):
        return []
    lines = read_sweep(path)
    before, now = lines[0]["identity"], header["identity"]
    different = [name for name in now if before.get(name) != now[name]]
    if different:
        name = different[0]
        raise KpruneError(
            f"{path} has a sweep with another {name} ({_short(before.get(name), now[name])}); name another file, or "
            "repeat the options of that sweep."
        )
    return lines


def _short(before: Any, now: Any) -> str:
    """Two values, or the first settings in which they differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        name = next(name for name in chain(now, before) if before.get(name) != now.get(name))
        return f"{name}: {before.get(name)!r:.40} and {now.get(name)!r:.40}"
    return f"{before!r:.40} and {now!r:.40}"


def _wanted(lines: list[Line], plan: SweepPlan) -> list[Line]:
    """The header and the points of this plan; a file may have points of earlier plans too."""
    cells = set(plan.cells)
    return [lines[0], *(line for line in lines[1:] if (line["reduction"], line["healed"]) in cells)]


def _run(
    state: State, pruner: Pruner, plan: SweepPlan, reduction: float, share: _Share, *, is_done: bool
) -> Iterator[Line]:
    """The lines of one reduction: the pruned model's, unless it is done, and the healed one's."""
    pruned = pruner.prune(reduction, progress=share.part(0.0, 0.7 if plan.heal is None else 0.2))
    if not is_done:
        yield _line(state, plan, pruned, share.part(*((0.7, 1.0) if plan.heal is None else (0.2, 0.3))))
    if plan.heal is not None:
        better = healed(state, pruned, share.part(0.3, 0.9))
        yield _line(state, plan, better, share.part(0.9, 1.0))


def _line(state: State, plan: SweepPlan, pruned: Pruned, advance: Advance) -> Line:
    """One point: its size, its quality and its time."""
    started = perf_counter()
    advance(Progress(0.0, "evaluating", None))
    evaluation = evaluate_against_dense(state, pruned.model, no_progress)
    advance(Progress(0.5, "timing", None))
    evaluated = perf_counter()
    milliseconds = _milliseconds(state.prepared.model, pruned.model, plan)
    advance(Progress(1.0, "", None))
    return {
        "kind": "point",
        "reduction": pruned.config.reduction,
        "healed": pruned.healed is not None,
        "removed": pruned.reduction,
        "flops": list(pruned.flops),
        "parameters": list(pruned.parameters),
        "megabytes": [weight_megabytes(state.prepared.model), weight_megabytes(pruned.model)],
        "milliseconds": milliseconds,
        "kept": [len(step.kept) for step in pruned.steps],
        "errors": [[step.error_before, step.error_after] for step in pruned.steps],
        "steps": [[step.layer, step.kind, step.units] for step in pruned.steps],
        "drop": drop_of(evaluation),
        **evaluation.as_json(),
        "changes": evaluation.changes_as_json(),
        "prune_seconds": pruned.seconds,
        "timing_seconds": perf_counter() - evaluated,
        "evaluation_seconds": evaluated - started,
    }


def _milliseconds(dense: PreTrainedModel, pruned: PreTrainedModel, plan: SweepPlan) -> list[float] | None:
    """Median milliseconds of both models in torch, taking turns; None for models of images and sounds."""
    if dense.main_input_name != "input_ids":
        return None
    calls = {}
    with torch_threads(plan.threads):
        for name, model in (("dense", dense), ("pruned", pruned)):
            ready = float32_copy(model).eval()
            inputs = random_inputs(ready.config, *plan.shape, ready.device)
            calls[name] = bind_inputs(runtime_named("torch").start(ready, inputs), inputs)
        times = time_interleaved(calls, seconds=plan.seconds)
    return [1e3 * times[name].p50 for name in ("dense", "pruned")]


@dataclass(frozen=True)
class _Share:
    """A part of the whole sweep's progress."""

    advance: Advance
    number: int
    total: int
    name: str

    def part(self, start: float, end: float) -> Advance:
        """A callback for one phase of a reduction, from share `start` to `end` of its work."""

        def report(progress: Progress) -> None:
            done = (self.number + start + (end - start) * progress.fraction) / self.total
            name = f"{self.name}, {progress.sublayer}" if progress.sublayer else self.name
            self.advance(replace(progress, fraction=min(done, 1.0), sublayer=name))

        return report
