"""Prune fine-tuned transformers models without retraining them.

Importing this package is all that `from_pretrained` needs to read a pruned checkpoint.
"""

from kprune import plugin as _plugin  # noqa: F401  # registers itself with transformers
from kprune.data import draw, read_lines, read_rows
from kprune.errors import KpruneError
from kprune.prune import Progress, Pruned, Step, prune
from kprune.settings import CRITERIA, Settings
from kprune.store import save

__all__ = [
    "CRITERIA",
    "KpruneError",
    "Progress",
    "Pruned",
    "Settings",
    "Step",
    "draw",
    "prune",
    "read_lines",
    "read_rows",
    "save",
]
