"""Prune fine-tuned transformers models without retraining them.

Importing this package is all that `from_pretrained` needs to read a pruned checkpoint.
"""

from kprune import plugin as _plugin  # noqa: F401  # registers itself with transformers
from kprune.data import draw, read_lines, read_rows
from kprune.errors import KpruneError
from kprune.evaluate import Evaluation, evaluate
from kprune.export import Exported, export
from kprune.latency import Latency, aim, measure_latency
from kprune.prune import Pruner, prune
from kprune.pruned import Progress, Pruned, Step
from kprune.settings import CRITERIA, Settings
from kprune.speed import Bench, Contender, bench
from kprune.store import Source, save
from kprune.tasks import TASKS, Test, load_task, read_test

__all__ = [
    "CRITERIA",
    "TASKS",
    "Bench",
    "Contender",
    "Evaluation",
    "Exported",
    "KpruneError",
    "Latency",
    "Progress",
    "Pruned",
    "Pruner",
    "Settings",
    "Source",
    "Step",
    "Test",
    "aim",
    "bench",
    "draw",
    "evaluate",
    "export",
    "load_task",
    "measure_latency",
    "prune",
    "read_lines",
    "read_rows",
    "read_test",
    "save",
]
