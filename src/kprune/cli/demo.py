"""`kprune demo`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kprune.cli.group import Work
from kprune.cli.help_page import grouped
from kprune.cli.options import json_option


@click.command(
    "demo",
    cls=Work,
    examples=(
        "kprune demo",
        "kprune demo demo --reduction 0.7",
    ),
)
@click.argument("out_folder", metavar="[OUT]", type=click.Path(path_type=Path), default=Path("demo"))
@grouped(
    "how much",
    click.option("--reduction", default=0.5, show_default=True, help="Share of the encoder's FLOPs to remove."),
)
@grouped("from what", click.option("--tokens", default=30_000, show_default=True, help="Real tokens to sample."))
@json_option
def demo_command(out_folder: Path, reduction: float, tokens: int, as_json: bool) -> None:
    """Prune all-MiniLM-L6-v2 on Python's own documentation, and compare."""
    from kprune.checkpoints.inspection import inspect
    from kprune.jobs.demo import run_demo
    from kprune.report.bars import out, progress_bar
    from kprune.report.figures import draw_layers
    from kprune.report.summary import print_inspection
    from kprune.report.tables import demo_tables

    demo = run_demo(out_folder / "model", reduction=reduction, tokens=tokens, show_progress=progress_bar)
    inspection = inspect(out_folder / "model")
    picture = out_folder / "kept.png"
    removed = 1 - inspection.flops[1] / inspection.flops[0]
    draw_layers(inspection.shape, picture, f"all-MiniLM-L6-v2 with {removed:.0%} of its FLOPs removed")
    if as_json:
        click.echo(json.dumps({**demo.as_json(), "picture": str(picture)}))
        return
    print_inspection(inspection, out)
    for table in demo_tables(demo):
        out.print(table)
    out.print(f"The model is in {out_folder / 'model'}, the picture in {picture}.", soft_wrap=True)
