"""Commands as text: the present one, to be repeated, and the `kprune prune` that a sweep proposes."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from typing import Any

import click
from click.core import ParameterSource

GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
"""Where a value comes from that a repeated command needs; the file's section is of one command only."""


def command_text(ctx: click.Context) -> str:
    """The command of a context, with the arguments and options that the command line or the file of options gave."""
    words = (word for parameter in ctx.command.params for word in _given(ctx, parameter))
    return shlex.join(["kprune", str(ctx.info_name), *words])


def command_like(
    ctx: click.Context, other: click.Command, arguments: Sequence[str], options: Sequence[str], without: Collection[str]
) -> str:
    """Another command with these words, and with the context's options that both have, except those in `without`."""
    known = {parameter.name for parameter in other.params} - set(without)
    given = [
        word
        for parameter in ctx.command.params
        if parameter.name in known and isinstance(parameter, click.Option)
        for word in _given(ctx, parameter)
    ]
    return shlex.join(["kprune", str(other.name), *arguments, *given, *options])


def _given(ctx: click.Context, parameter: click.Parameter) -> list[str]:
    """The words of a parameter, if the command line or the file of options gave it."""
    name, value = str(parameter.name), ctx.params.get(str(parameter.name))
    if ctx.get_parameter_source(name) not in GIVEN or value is None:
        return []
    values: list[Any] = list(value) if isinstance(value, tuple) else [value]
    if isinstance(parameter, click.Argument):
        return [str(each) for each in values]
    assert isinstance(parameter, click.Option)
    if isinstance(value, bool):
        names = parameter.opts if value else parameter.secondary_opts
        return [names[0]] if names else []
    return [word for each in values for word in (parameter.opts[0], str(each))]
