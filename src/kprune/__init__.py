"""Prune fine-tuned transformers models without retraining them.

`from_pretrained` reads a pruned checkpoint once this package is imported. Public names are imported on first use: torch
and transformers take seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kprune.checkpoints.registration import register_with_transformers

if TYPE_CHECKING:
    from kprune.checkpoints.self_contained import make_self_contained
    from kprune.checkpoints.source import Source
    from kprune.checkpoints.writer import save
    from kprune.config import HealConfig, PruneConfig, RunConfig
    from kprune.config import PruneConfig as Settings
    from kprune.data.calibration import draw
    from kprune.data.items import read_audio, read_images
    from kprune.data.processing import draw_audio, draw_images
    from kprune.data.readers import read_lines, read_rows
    from kprune.data.tasks import TASKS, Test, load_task, read_test
    from kprune.deploy.benchmark import Bench, Contender, bench
    from kprune.deploy.exported import Exported
    from kprune.deploy.exporter import export
    from kprune.deploy.latency import Latency, aim, measure_latency, reduction_for_speedup
    from kprune.errors import KpruneError
    from kprune.evaluation.evaluator import Evaluation, evaluate
    from kprune.healing.healer import heal
    from kprune.healing.result import Healed
    from kprune.jobs.check_model import check
    from kprune.jobs.prune_named import prune
    from kprune.pruning.criteria import CRITERIA
    from kprune.pruning.progress import Progress
    from kprune.pruning.pruner import Pruner
    from kprune.pruning.result import Pruned, Step

    __version__: str

__all__ = [
    "CRITERIA",
    "TASKS",
    "Bench",
    "Contender",
    "Evaluation",
    "Exported",
    "HealConfig",
    "Healed",
    "KpruneError",
    "Latency",
    "Progress",
    "PruneConfig",
    "Pruned",
    "Pruner",
    "RunConfig",
    "Settings",
    "Source",
    "Step",
    "Test",
    "aim",
    "bench",
    "check",
    "draw",
    "draw_audio",
    "draw_images",
    "evaluate",
    "export",
    "heal",
    "load_task",
    "make_self_contained",
    "measure_latency",
    "prune",
    "read_audio",
    "read_images",
    "read_lines",
    "read_rows",
    "read_test",
    "reduction_for_speedup",
    "save",
]

_HOMES = {
    "checkpoints.self_contained": ("make_self_contained",),
    "checkpoints.source": ("Source",),
    "checkpoints.writer": ("save",),
    "config": ("HealConfig", "PruneConfig", "RunConfig"),
    "data.calibration": ("draw",),
    "data.items": ("read_audio", "read_images"),
    "data.processing": ("draw_audio", "draw_images"),
    "data.readers": ("read_lines", "read_rows"),
    "data.tasks": ("TASKS", "Test", "load_task", "read_test"),
    "deploy.benchmark": ("Bench", "Contender", "bench"),
    "deploy.exported": ("Exported",),
    "deploy.exporter": ("export",),
    "deploy.latency": ("Latency", "aim", "measure_latency", "reduction_for_speedup"),
    "errors": ("KpruneError",),
    "evaluation.evaluator": ("Evaluation", "evaluate"),
    "healing.healer": ("heal",),
    "healing.result": ("Healed",),
    "jobs.check_model": ("check",),
    "jobs.prune_named": ("prune",),
    "pruning.criteria": ("CRITERIA",),
    "pruning.progress": ("Progress",),
    "pruning.pruner": ("Pruner",),
    "pruning.result": ("Pruned", "Step"),
}
"""The module of each public name; a test compares them with the imports above."""
_MODULES = {name: module for module, names in _HOMES.items() for name in names}
_OLD_NAMES = {"Settings": "PruneConfig"}
"""Names before version 0.2."""


def __getattr__(name: str) -> Any:
    current = _OLD_NAMES.get(name, name)
    if name == "__version__":
        value = import_module("importlib.metadata").version(__name__)
    elif current in _MODULES:
        value = getattr(import_module(f"{__name__}.{_MODULES[current]}"), current)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=None)
    globals()[name] = value  # the next access is a plain one
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_with_transformers()
