"""Provenance of a result."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import torch
import transformers

from kprune.checkpoints.names import without_folders


def provenance() -> dict[str, str]:
    """Command, commit and machine that made a result."""
    root = Path(__file__).parent
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=False
    ).stdout.strip()
    arguments = map(without_folders, sys.argv[1:])
    return {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *arguments]),
        "commit": commit,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, {torch.get_num_threads()} threads",
    }
