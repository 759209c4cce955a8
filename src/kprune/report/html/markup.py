"""HTML and SVG elements; plain strings are text and are escaped, so that no input becomes markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

VOID = {"meta", "input"}
"""Elements that have no end tag; those of SVG have one."""
CONTROLS = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127), "�")
"""Control characters, which are not allowed in HTML."""


class Html(str):
    """Markup that is escaped already."""

    __slots__ = ()


Child = str | Html | Iterable[Any] | None


def text(value: Child) -> Html:
    """Children as markup: strings are escaped, markup is kept, sequences are joined, None is nothing."""
    if isinstance(value, Html):
        return value
    if value is None:
        return Html("")
    if isinstance(value, str):
        return Html(escape(value.translate(CONTROLS), quote=True))
    return Html("".join(text(child) for child in value))


def tag(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Html:
    """An element; `class_` and `aria_label` are written as class and aria-label, and None and False are left out."""
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        written = key.rstrip("_").replace("_", "-")
        parts.append(written if value is True else f'{written}="{text(_plain(value))}"')
    start = f"<{' '.join(parts)}>"
    return Html(start if name in VOID else f"{start}{text(children)}</{name}>")


def _plain(value: str | float) -> str:
    """A number without useless digits."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
