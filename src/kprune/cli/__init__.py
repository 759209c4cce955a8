"""The command line, one file per group of commands."""

from kprune.cli.main import main

__all__ = ["main"]
