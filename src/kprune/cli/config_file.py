"""`kprune.toml`: options of commands in a file; the command line wins over it."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kprune.errors import BadOptions

FILE_NAME = "kprune.toml"
"""Is read if the working directory has it."""
NEVER_IN_FILE = ("config", "help")
ALTERNATIVES = (
    ("reduction", {"max_drop", "speedup"}),
    ("max_drop", {"reduction", "speedup"}),
    ("speedup", {"reduction", "max_drop"}),
    ("text", {"images", "audio", "task", "table", "columns", "label", "metrics", "subset"}),
    ("images", {"text", "audio", "task", "table", "columns", "label", "subset"}),
    ("audio", {"text", "images", "task", "table", "columns", "label", "subset"}),
    ("task", {"text", "images", "audio", "columns", "label", "metrics", "subset"}),
    ("table", {"text", "images", "audio"}),
    ("quiet", {"verbose"}),
    ("verbose", {"quiet"}),
)
"""An option of the command line, and those of the file that contradict it and so give way."""


def read_options(ctx: click.Context, path: Path | None) -> dict[str, Any]:
    """The values that the file has for the context's command, by parameter name; empty if there is no file."""
    file = path or Path(FILE_NAME)
    if path is None and not file.is_file():
        return {}
    sections, commands = _read_toml(file), _commands(ctx)
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise BadOptions(f"{file} has {name!r} outside of a section; put it below [{ctx.info_name}].")
        if name not in commands:
            raise BadOptions(f"{file} has the section [{name}], which is no command; {_nearest(name, commands)}.")
    section = sections.get(str(ctx.info_name), {})
    options = _options_by_key(ctx.command)
    found: dict[str, Any] = {}
    for key, value in section.items():
        option = options.get(key.replace("_", "-"))
        if option is None:
            raise BadOptions(
                f"{file}, [{ctx.info_name}], has the unknown key {key!r}; {_nearest(key.replace('_', '-'), options)}."
            )
        found[str(option.name)] = _value(option, value, f"{file}, [{ctx.info_name}], {key}")
    return found


def contradicted(ctx: click.Context) -> set[str]:
    """Names of options that the file gives and that contradict one of the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in _names(ctx)}
    given = {name for name, source in sources.items() if source is ParameterSource.COMMANDLINE}
    in_file = {name for name, source in sources.items() if source is ParameterSource.DEFAULT_MAP}
    return {name for chosen, others in ALTERNATIVES if chosen in given for name in in_file & others}


def _names(ctx: click.Context) -> list[str]:
    return [str(param.name) for param in ctx.command.params]


def _read_toml(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise BadOptions(f"cannot read {file}: {error.strerror}; check --config.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadOptions(f"{file} is not TOML ({error}); correct it.") from error


def _commands(ctx: click.Context) -> Mapping[str, click.Command]:
    """The commands beside the context's, itself included."""
    parent = ctx.parent.command if ctx.parent is not None else None
    return parent.commands if isinstance(parent, click.Group) else {str(ctx.info_name): ctx.command}


def _options_by_key(command: click.Command) -> dict[str, click.Option]:
    """Options by their long names, without the dashes."""
    options = [each for each in command.params if isinstance(each, click.Option) and each.name not in NEVER_IN_FILE]
    return {name.removeprefix("--"): each for each in options for name in each.opts if name.startswith("--")}


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    close = get_close_matches(name, known, 1)
    return f"the nearest is {close[0]!r}" if close else f"known are {', '.join(known)}"


def _value(option: click.Option, value: Any, place: str) -> Any:
    """The value as click takes it; raises where its kind cannot be the option's."""
    if isinstance(value, dict) or (isinstance(value, list) and not option.multiple):
        raise BadOptions(f"{place} is {value!r}, but must be one value.")
    if option.multiple:
        return [_value_of_one(option, each, place) for each in (value if isinstance(value, list) else [value])]
    return _value_of_one(option, value, place)


def _value_of_one(option: click.Option, value: Any, place: str) -> Any:
    if option.is_flag != isinstance(value, bool):
        wanted = "true or false" if option.is_flag else "a value, not true or false"
        raise BadOptions(f"{place} is {value!r}, but must be {wanted}.")
    return value if isinstance(value, bool) else str(value)
