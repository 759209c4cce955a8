"""What other processes run in test_results.py and test_comparison.py."""

from __future__ import annotations

import json
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from command_line import kprune

from kprune.jobs import comparison
from kprune.jobs.results import append_result


def append_lines(path: Path, name: str, lines: int) -> None:
    """Append long lines to a results file."""
    for number in range(lines):
        append_result(path, {"name": name, "number": number, "fill": "x" * 5000})


def compare_until(stop: int, moment: str, arguments: list[str], ready: Connection) -> None:
    """Run `kprune compare`; at cell number `stop`, report to `ready` and wait to be killed.

    The moment is before the cell's line is written, in its middle, or after it.
    """
    torch.set_num_threads(1)
    finished = 0

    def append_and_stop(path: Path, line: dict[str, object]) -> None:
        nonlocal finished
        finished += 1
        if finished < stop or moment == "after":
            append_result(path, line)
        elif moment == "middle":
            with path.open("a") as file:
                file.write(json.dumps(line)[:100])
                file.flush()
                os.fsync(file.fileno())
        if finished == stop:
            ready.send("stopped")
            time.sleep(600)

    comparison.append_result = append_and_stop
    kprune("compare", *arguments)
    ready.send("finished too early")
