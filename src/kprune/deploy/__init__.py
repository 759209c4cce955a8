"""Exported graphs, runtimes, timing and latency budgets."""
