"""Prune fine-tuned transformers models without retraining them.

Importing this package is all that `from_pretrained` needs to read a pruned checkpoint.
"""

from kprune import plugin as _plugin  # noqa: F401  # registers itself with transformers
from kprune.data import draw, read_lines, read_rows
from kprune.errors import KpruneError
from kprune.evaluate import Evaluation, evaluate
from kprune.prune import Pruner, prune
from kprune.pruned import Progress, Pruned, Step
from kprune.settings import CRITERIA, Settings
from kprune.store import save
from kprune.tasks import TASKS, Test, load_task, read_test

__all__ = [
    "CRITERIA",
    "TASKS",
    "Evaluation",
    "KpruneError",
    "Progress",
    "Pruned",
    "Pruner",
    "Settings",
    "Step",
    "Test",
    "draw",
    "evaluate",
    "load_task",
    "prune",
    "read_lines",
    "read_rows",
    "read_test",
    "save",
]
