"""torch's modes of computation: autocast and inference mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")


@contextmanager
def ordinary_mode() -> Iterator[None]:
    """Switch off autocast, which rounds the sums of a run, and inference mode, which forbids gradients."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        for device in AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
