"""The reference pages of the docs site, generated from the code while mkdocs builds."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import fields
from html import escape
from typing import Any

import click

import kprune
from kprune.cli.help_page import group_of
from kprune.cli.main import main
from kprune.config import GROUPS, HealConfig, PruneConfig, RunConfig, info_of

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./(?:dev|benchmarks)/[^)]*\)")
"""Links to files of the repository that the site does not have."""


def on_files(files: Any, *, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for name, page in {"commands": commands_page, "settings": settings_page, "python": python_page}.items():
        files.append(File.generated(config, f"reference/{name}.md", content=page()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links to files outside of the site into plain text."""
    return OUTSIDE.sub(r"\1", markdown)


def commands_page() -> str:
    """Every command with its options under their headings, and its examples."""
    parts = ["# Commands and options", "", "`kprune COMMAND --help` prints the same.", ""]
    for name, command in main.commands.items():
        context = click.Context(command, info_name=f"kprune {name}")
        usage = command.get_usage(context).removeprefix("Usage: ")
        parts += [f"## kprune {name}", "", inspect.cleandoc(command.help or ""), "", "```text", usage, "```", ""]
        options = [each for each in command.get_params(context) if isinstance(each, click.Option)]
        for group, heading in GROUPS.items():
            records = [each.get_help_record(context) for each in options if group_of(each) == group]
            rows = [f"| `{flags}` | {_cell(text)} |" for flags, text in filter(None, records)]
            parts += [f"**{heading}**", "", "| option | |", "|---|---|", *rows, ""] if rows else []
        examples = "\n".join(getattr(command, "examples", ()))
        parts += ["**Examples**", "", "```text", examples, "```", ""]
    return "\n".join(parts)


def settings_page() -> str:
    """The fields of the three configurations."""
    parts = ["# Settings", "", "Fields of the objects that Python takes; keywords of the same names work, too.", ""]
    for config in (PruneConfig, HealConfig, RunConfig):
        parts += [f"## {config.__name__}", "", _first_paragraph(config), "", "| field | default | |", "|---|---|---|"]
        for each in fields(config):
            default = "" if callable(each.default) else f"`{each.default!r}`"
            parts.append(f"| `{each.name}` | {default} | {_cell(info_of(each).help)} |")
        parts.append("")
    return "\n".join(parts)


def python_page() -> str:
    """The public names with their signatures and docstrings, functions first."""
    parts = ["# Python", "", "All names are attributes of the module `kprune`.", ""]
    for name in sorted(kprune.__all__, key=lambda name: inspect.isclass(getattr(kprune, name))):
        value = getattr(kprune, name)
        if name == "Settings" or not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        parts += [f"## {name}", "", "```python", f"{name}{_signature(value)}", "```", ""]
        parts += [escape(inspect.getdoc(value) or "", quote=False), ""]
        parts += [f"Defined in `{importlib.import_module(value.__module__).__name__}`.", ""]
    return "\n".join(parts)


def _signature(value: Any) -> str:
    """The names and defaults of a function's arguments, one per line where they are many; types are left out."""
    if inspect.isclass(value) and issubclass(value, Exception):
        return ""
    stars: dict[Any, str] = {inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.VAR_POSITIONAL: "*"}
    names = []
    for each in inspect.signature(value).parameters.values():
        default = each.default
        shown = "…" if callable(default) or len(repr(default)) > 30 else repr(default)
        plain = stars.get(each.kind, "") + each.name
        names.append(plain if default is each.empty else f"{plain}={shown}")
    line = f"({', '.join(names)})"
    return line if len(line) < 90 else "(\n    " + ",\n    ".join(names) + ",\n)"


def _first_paragraph(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def _cell(text: str) -> str:
    return escape(" ".join(text.split()), quote=False).replace("|", "\\|")
