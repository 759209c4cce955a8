"""How much memory this process took at its peak, and what to do when there is no more."""

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
from kprune.ranks import everyone

TELLS = ("out of memory", "can't allocate memory", "could not create a primitive", "could not create a memory object")
"""What a GPU's allocator, the host's, and oneDNN say where there is no memory left: all of them RuntimeErrors."""
TIDY_EVERY = 8
"""Batches after which memory is tidied, where each leaves something small behind: glibc keeps the gaps between."""


def give_back() -> None:
    """Hand what this process has freed back to the system, where it can be."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    tidy()


def tidy() -> None:
    """Hand back what is free between small things that are not."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def forget_peak() -> None:
    """Start the count of peak memory anew, where the system can."""
    give_back()  # what was freed before does not count
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_megabytes() -> float:
    """Megabytes held at the highest moment since the start, or since `forget_peak`."""
    try:
        status = Path("/proc/self/status").read_text()
        return next(float(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 1024)


def gpu_peak_megabytes() -> float | None:
    """The same of a GPU's memory, since the start; None where none was used."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return float(torch.cuda.max_memory_allocated()) / 2**20


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory left, on a GPU or in the host."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(told in str(error) for told in TELLS)


@contextmanager
def batch_by_batch() -> Iterator[None]:
    """Around passes over batches: where memory ends in any process, all of them learn of it here."""
    has_room = True
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        has_room = False
    if not everyone(has_room):
        raise OutOfMemory(
            "there is not enough memory for a batch of the sample; use shorter texts (--max-length), or --offload."
        )
