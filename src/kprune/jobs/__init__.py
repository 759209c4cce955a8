"""Whole jobs, used by the command line, the demo and the benchmarks alike."""
