"""Several reductions of one model share the teacher's passes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from kprune.config import RunConfig
from kprune.models.sublayer import find
from kprune.pruning.pruner import Pruner
from kprune.runtime.tensor_store import HOST, open_store

MOST_TARGET_BYTES = 2**30
"""The teacher's streams after all sublayers are kept in memory up to this size, and on disk beyond it."""


@contextmanager
def kept_targets(pruner: Pruner, run: RunConfig, *, several: bool) -> Iterator[None]:
    """Within the context, several runs share the teacher's passes: in memory, or on disk if they are large.

    If no disk has room for them, every run makes them again.
    """
    bytes_needed = 4 * pruner.shared.sample.tokens * pruner.model.config.hidden_size * len(find(pruner.model))
    with TemporaryDirectory() as folder:
        place = run.offload or (None if bytes_needed <= MOST_TARGET_BYTES else folder)
        has_room = place is None or place == HOST or shutil.disk_usage(place).free > 2 * bytes_needed
        if several and has_room:
            pruner.keep_targets(open_store(place))
        try:
            yield
        finally:
            pruner.keep_targets(None)
