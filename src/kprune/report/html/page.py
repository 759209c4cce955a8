"""The skeleton of a page: one file with its style and its script inside, which asks for nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from kprune.errors import KpruneError
from kprune.report.html.markup import Child, Html, tag

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The browser refuses every request that the page could make."""


def page(kind: str, title: str, deck: str, sections: Sequence[Child]) -> Html:
    """A whole document; `deck` is the sentence below the title."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} – kprune"),
        tag("style", _resource("page.css")),
    )
    top = tag("header", tag("p", kind, class_="kind"), tag("h1", title), tag("p", deck, class_="deck"), class_="top")
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        top,
        tag("main", *sections, id="content", tabindex="-1"),
        tag("footer", f"Written by kprune {version('kprune')}. This file is complete: it loads nothing."),
        tag("script", _resource("page.js")),
    )
    return Html("<!doctype html>\n" + tag("html", head, body, lang="en") + "\n")


def _resource(name: str) -> Html:
    """A file of this folder; it is ours, and holds no `</`."""
    return Html((files(__package__) / name).read_text("utf-8"))


def write_page(path: Path, content: str) -> None:
    """Write a page as a whole, or raise with the reason."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise KpruneError(f"{path} cannot be written ({error.strerror}); name another file for the report.") from error
