"""`kprune report`."""

from __future__ import annotations

from pathlib import Path

import click

from kprune.cli.group import Work
from kprune.cli.help_page import grouped
from kprune.cli.options import guard_option, require_report


@click.command(
    "report",
    cls=Work,
    examples=(
        "kprune report small small.html  # a pruned model",
        "kprune report sweep.jsonl sweep.html --max-drop 1",
    ),
)
@click.argument("results", metavar="FOLDER|RESULTS", type=click.Path(path_type=Path))
@click.argument("page", metavar="OUT", type=click.Path(path_type=Path, dir_okay=False))
@grouped(
    "how much",
    click.option(
        "--max-drop", type=float, help="Of a sweep: choose the largest reduction that costs at most this much."
    ),
    guard_option,
)
def report_command(results: Path, page: Path, max_drop: float | None, guard: bool) -> None:
    """Write OUT, an HTML page, of a model FOLDER or of RESULTS.

    RESULTS are the file of kprune sweep or compare, or what prune, evaluate and bench print with --json.
    """
    require_report(page)
    from kprune.report.bars import out
    from kprune.report.html.page import write_page
    from kprune.report.html.recognition import page_of

    write_page(page, page_of(results, max_drop=max_drop, guard=guard))
    out.print(f"Written to {page}.", soft_wrap=True)
