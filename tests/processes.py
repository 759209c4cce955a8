"""Processes that import kprune once and start in milliseconds, for tests that kill one or start several."""

from __future__ import annotations

import multiprocessing

FAST_START = multiprocessing.get_context("forkserver")
FAST_START.set_forkserver_preload(["kprune.jobs.comparison", "kprune.cli"])
