"""Notebooks: tables as HTML, and a progress bar."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape

CELL = "padding:.2em .8em;border:0;background:none;"
LINE = "border-bottom:1px solid currentColor;"
"""Colours are the notebook's own, light or dark."""


def html_table(
    caption: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    *,
    text_columns: int = 1,
) -> str:
    """A table as HTML without scripts, colours or links; all texts are escaped; later columns are numbers."""
    head = "".join(_cell("th", text, place < text_columns, LINE) for place, text in enumerate(headings))
    lines = ("".join(_cell("td", text, place < text_columns) for place, text in enumerate(row)) for row in rows)
    title = f'<caption style="caption-side:top;text-align:left;color:inherit">{escape(caption)}</caption>'
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    below = "".join(f"<p><small>{escape(note)}</small></p>" for note in notes)
    table = f"{title if caption else ''}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<table style="border-collapse:collapse">{table}</table>{below}'


def html_details(summary: str, content: str) -> str:
    """HTML that is folded at first; `content` is HTML."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def _cell(tag: str, text: str, is_text: bool, style: str = "") -> str:
    side = "left" if is_text else "right"
    return f'<{tag} style="{CELL}text-align:{side};{style}">{escape(text)}</{tag}>'


def is_notebook() -> bool:
    """Whether the code runs in a notebook's kernel, which has no terminal."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    return shell is not None and hasattr(shell, "kernel")


@contextmanager
def fraction_bar(description: str) -> Iterator[Callable[[float, str], None]]:
    """Yield a callback that takes the share of work done and a note, and draws it where the code runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without ipywidgets, the bar is text
        from tqdm.auto import tqdm

    layout = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
    with tqdm(total=1.0, desc=description, bar_format=layout) as bar:

        def advance(fraction: float, note: str) -> None:
            bar.set_postfix_str(note, refresh=False)
            bar.update(max(0.0, fraction - bar.n))

        yield advance
