"""Peak memory of this process, memory returned to the system, and out-of-memory errors."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from kprune.errors import OutOfMemory
from kprune.runtime.distributed import all_true

OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "could not create a primitive",
    "could not create a memory object",
)
"""Texts of the RuntimeErrors that CUDA's allocator, the host's allocator and oneDNN raise when memory is exhausted."""


def release_memory() -> None:
    """Return freed memory to the system, the GPU's cache included."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim_heap()


def trim_heap() -> None:
    """Return free pages of glibc's heap to the system."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak() -> None:
    """Restart the count of peak memory, where the system supports it."""
    release_memory()  # freed memory does not count
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_megabytes() -> float:
    """Peak resident memory in megabytes since the start, or since `reset_peak`."""
    try:
        status = Path("/proc/self/status").read_text()
        return next(float(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 1024)


def gpu_peak_megabytes() -> float | None:
    """Peak GPU memory in megabytes since the start; None without a GPU."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return float(torch.cuda.max_memory_allocated()) / 2**20


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory is exhausted, on a GPU or on the host."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)


@contextmanager
def guard_memory() -> Iterator[None]:
    """Raise OutOfMemory in all processes if memory runs out in one of them."""
    has_room = True
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        has_room = False
    if not all_true(has_room):
        raise OutOfMemory("not enough memory for a batch of the sample; use shorter texts (--max-length) or --offload.")
