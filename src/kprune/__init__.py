"""Prune fine-tuned transformers models without retraining them."""

from kprune.errors import KpruneError
from kprune.prune import Progress, Pruned, Step, prune
from kprune.settings import CRITERIA, Settings

__all__ = ["CRITERIA", "KpruneError", "Progress", "Pruned", "Settings", "Step", "prune"]
