"""How much memory this process took at its peak."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path


def forget_peak() -> None:
    """Start the count of peak memory anew, where the system can."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what earlier cells freed is not this one's
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return


def peak_megabytes() -> float:
    """Megabytes held at the highest moment since the start, or since `forget_peak`."""
    try:
        status = Path("/proc/self/status").read_text()
        return next(float(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 1024)
