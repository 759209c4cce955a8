"""Help pages: options under headings, then examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from kprune.config import GROUPS

Decorator = Callable[[Any], Any]
DEFAULT_GROUP = "what"
"""Of an option that names no group."""


def apply_options(command: Any, options: Sequence[Decorator], group: str | None = None) -> Any:
    """The command with options added, in their order; `group` is their heading on the help page, a key of GROUPS."""
    for option in reversed(options):
        command = option(command)
        if group is not None:
            params_of(command)[-1].group = group  # type: ignore[attr-defined]
    return command


def grouped(group: str, *options: Decorator) -> Decorator:
    """A decorator that adds options under a heading of the help page."""
    return lambda command: apply_options(command, options, group)


def params_of(command: Any) -> list[click.Parameter]:
    """The parameters that decorators have added to a function so far, or those of a command."""
    if isinstance(command, click.Command):
        return command.params
    found: list[click.Parameter] = command.__click_params__
    return found


def group_of(param: click.Parameter) -> str:
    """The key in GROUPS of an option's heading."""
    return str(getattr(param, "group", DEFAULT_GROUP))


def write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the options of a command, one section per heading, in the order of GROUPS."""
    records: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None and isinstance(param, click.Option):
            records[group_of(param)].append(record)
    for group, heading in GROUPS.items():
        if records[group]:
            with formatter.section(heading):
                formatter.write_dl(records[group])


def write_examples(examples: Sequence[str], formatter: click.HelpFormatter) -> None:
    """Write the examples as they can be copied: unwrapped, a comment above each command that has one."""
    with formatter.section("Examples"):
        for example in examples:
            command, _, comment = example.partition("  # ")
            if comment:
                formatter.write(f"{'':>{formatter.current_indent}}# {comment}\n")
            formatter.write(f"{'':>{formatter.current_indent}}{command}\n")
