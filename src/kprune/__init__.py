"""Prune fine-tuned transformers models without retraining them.

`from_pretrained` reads a pruned checkpoint once this package is imported.
"""

from kprune.checkpoints import hf_plugin as _hf_plugin  # noqa: F401  # registers itself with transformers
from kprune.checkpoints.source import Source
from kprune.checkpoints.writer import save
from kprune.config import PruneConfig, RunConfig
from kprune.data.calibration import draw
from kprune.data.readers import read_lines, read_rows
from kprune.data.tasks import TASKS, Test, load_task, read_test
from kprune.deploy.benchmark import Bench, Contender, bench
from kprune.deploy.exporter import Exported, export
from kprune.deploy.latency import Latency, aim, measure_latency, reduction_for_speedup
from kprune.errors import KpruneError
from kprune.evaluation.evaluator import Evaluation, evaluate
from kprune.pruning.criteria import CRITERIA
from kprune.pruning.progress import Progress
from kprune.pruning.pruner import Pruner, prune
from kprune.pruning.result import Pruned, Step

Settings = PruneConfig
"""The name of `PruneConfig` before version 0.2."""

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
    "draw",
    "evaluate",
    "export",
    "load_task",
    "measure_latency",
    "prune",
    "read_lines",
    "read_rows",
    "read_test",
    "reduction_for_speedup",
    "save",
]
