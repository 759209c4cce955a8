"""Tables with captions and scopes, and the sortable, filterable table of examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kprune.report.html.markup import Child, Html, tag


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    is_number: bool = False
    is_text: bool = False
    """Long text, which needs room."""


@dataclass(frozen=True)
class Cell:
    """A cell with the number by which it sorts."""

    content: Child
    value: float | None = None


def table(
    caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Child]], *, chosen: int | None = None
) -> Html:
    """A table; the first cell of a row is its heading, and one row may be marked. A narrow screen scrolls it alone."""
    head = tag("tr", *(tag("th", each.title, scope="col", class_=_class(each)) for each in columns))
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row", class_=_class(columns[0])),
            *(tag("td", cell, class_=_class(column)) for column, cell in zip(columns[1:], row[1:], strict=True)),
            class_="chosen" if number == chosen else None,
        )
        for number, row in enumerate(rows)
    ]
    content = tag("table", tag("caption", tag("span", caption)), tag("thead", head), tag("tbody", *body))
    return tag("div", content, class_="scroll", role="region", tabindex="0", aria_label=caption)


def sortable_table(
    name: str, caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, groups: Sequence[str] = ()
) -> Html:
    """A table whose headers sort, with a search field and, given each row's group, a choice of groups.

    Without JavaScript it is a plain table: the controls appear when the script runs.
    """
    head = [
        tag("th", tag("button", each.title, type="button"), scope="col", class_=_class(each), aria_sort="none")
        for each in columns
    ]
    body = []
    for number, row in enumerate(rows):
        cells = [
            tag("td", cell.content, class_=_class(column), data_value=None if cell.value is None else f"{cell.value}")
            for column, cell in zip(columns, row, strict=True)
        ]
        body.append(tag("tr", *cells, data_group=groups[number] if groups else None))
    content = tag(
        "table", tag("caption", tag("span", caption)), tag("thead", tag("tr", *head)), tag("tbody", *body), id=name
    )
    scroll = tag("div", content, class_="scroll tall", role="region", tabindex="0", aria_label=caption)
    return tag("div", _controls(name, groups), scroll, class_="explorer", data_for=name)


def _controls(name: str, groups: Sequence[str]) -> Html:
    search = tag("label", "Search ", tag("input", type="search", id=f"{name}-search", autocomplete="off"))
    kinds = list(dict.fromkeys(groups))
    choice: Child = None
    if len(kinds) > 1:
        options = [tag("option", "all", value=""), *(tag("option", each, value=each) for each in sorted(kinds))]
        choice = tag("label", "Change ", tag("select", *options, id=f"{name}-group"))
    count = tag("output", id=f"{name}-count", for_=f"{name}-search", aria_live="polite")
    return tag("div", search, choice, count, class_="controls", hidden=True)


def _class(column: Column) -> str | None:
    return "number" if column.is_number else "long" if column.is_text else None
