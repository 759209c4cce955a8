"""`kprune check`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from kprune.cli.group import Work
from kprune.cli.help_page import grouped
from kprune.cli.options import json_option


@click.command(
    "check",
    cls=Work,
    examples=(
        "kprune check MODEL",
        "kprune check MODEL --text sentences.txt  # on your own text",
    ),
)
@click.argument("model")
@grouped(
    "from what",
    click.option(
        "--text", type=click.Path(path_type=Path), help="Run on lines of this file.  [default: built-in text]"
    ),
)
@json_option
def check_command(model: str, text: Path | None, as_json: bool) -> None:
    """Check on MODEL itself that kprune can prune it.

    If kprune has no row for the model's type, it proposes one, and prints it if every law holds.
    """
    from kprune.checkpoints.source import Source, fetch
    from kprune.data.tasks import text_test
    from kprune.jobs.check_model import check_model
    from kprune.models.row_format import as_source, to_json
    from kprune.report.bars import out

    texts = None if text is None else [line for (line,) in text_test(text).rows]
    checked = check_model(Source(fetch(model), name=model), texts)
    if as_json:
        row = to_json(checked.row) if checked.is_proposed else None
        findings = [asdict(finding) for finding in checked.findings]
        click.echo(json.dumps({"model_type": checked.model_type, "proposed_row": row, "laws": findings}))
    else:
        origin = "a proposed row" if checked.is_proposed else "the row of the table"
        out.print(f"{checked.model_type}, {origin}", highlight=False)
        for finding in checked.findings:
            verdict = "ok" if finding.failure is None else f"broken: {finding.failure}"
            out.print(f"{finding.law:<14} {verdict}", highlight=False, markup=False, soft_wrap=True)
        if checked.is_proposed and checked.is_sound:
            out.print("The row, to be contributed (docs/new-family.md):", highlight=False)
            click.echo(as_source(checked.row, constant_name(checked.model_type)))
    if not checked.is_sound:
        sys.exit(1)


def constant_name(model_type: str) -> str:
    """A Python name for the row of a model type."""
    return model_type.upper().replace("-", "_").replace(".", "_")
