"""`kprune compare` and `kprune plot`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from kprune.cli.group import Work
from kprune.cli.help_page import grouped
from kprune.cli.options import json_option, report_option, require_report, write_report
from kprune.cli.repeating import command_text
from kprune.errors import BadOptions, KpruneError


@click.command(
    "compare",
    cls=Work,
    examples=(
        "kprune compare results.jsonl --model sst2=MODEL --method kprune --method kwon --reduction 0.4 --reduction 0.6",
        "kprune compare results.jsonl --grid grid.toml",
    ),
)
@click.argument("results", type=click.Path(path_type=Path))
@click.option("--grid", "grid_file", type=click.Path(path_type=Path), help="TOML file for what options do not set.")
@grouped(
    "from what",
    click.option("--model", "models", multiple=True, metavar="TASK=MODEL", help="A task and the model for it."),
)
@click.option("--method", "methods", multiple=True, help="A method, or a variant such as 'kprune refit=no'.")
@grouped("how much", click.option("--reduction", "reductions", multiple=True, type=float))
@grouped("advanced", click.option("--seed", "seeds", multiple=True, type=int))
@grouped(
    "from what", click.option("--tokens", type=click.IntRange(min=1), help="Real tokens to sample.  [default: 25000]")
)
@grouped("from what", click.option("--data", help="Folder of the data sets' folders.  [default: the hub]"))
@grouped(
    "test", click.option("--limit", type=click.IntRange(min=1), help="Validation rows, evenly spread.  [default: all]")
)
@grouped(
    "advanced", click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
)
@report_option
@click.pass_context
def compare_command(
    ctx: click.Context,
    /,
    results: Path,
    grid_file: Path | None,
    jobs: int,
    models: tuple[str, ...],
    report: Path | None,
    **options: Any,
) -> None:
    """Run methods × tasks × reductions × seeds into RESULTS, one JSON line each; finished cells are not run again."""
    require_report(report)
    from kprune.jobs.comparison import compare
    from kprune.jobs.grid import Grid, read_grid
    from kprune.jobs.results import grid_lines, open_cells
    from kprune.report.bars import counting_bar, out

    chosen = read_grid(grid_file) if grid_file else {}
    chosen |= {name: value for name, value in options.items() if value not in (None, ())}
    if models:
        chosen["models"] = {task: model for task, _, model in (each.partition("=") for each in models)}
    wrong = [f" ({task!r} has no model)" for task, model in chosen.get("models", {}).items() if not model]
    if wrong or not chosen.get("models"):
        raise BadOptions(f"pass at least one --model TASK=MODEL{wrong[0] if wrong else ''}.")
    grid = Grid(**chosen)
    total, left = len(grid.cells()), len(open_cells(grid, results))
    with counting_bar(total, total - left) as count:
        compare(grid, results, jobs=jobs, finished=count)
    lines = grid_lines(grid, results)
    failed = [line for line in lines if "error" in line]
    out.print(f"{results}: {total} cells, {left} run now, {len(failed)} failed in all.", soft_wrap=True)
    for line in failed:
        cell = f"{line['task']}, {line['method']}, {line['reduction']:g}, seed {line['seed']}"
        out.print(f"  {cell}: {line['error']}", highlight=False, soft_wrap=True)
    if failed and len(failed) == len(lines):
        raise KpruneError("every cell failed; the lines above have the reasons. The next run tries them again.")
    if report is not None:
        from kprune.report.comparison_runs import finished_runs
        from kprune.report.html.comparison_document import compare_page

        write_report(report, compare_page(finished_runs(results), results.stem, command=command_text(ctx)))


@click.command(
    "plot",
    cls=Work,
    examples=(
        "kprune plot results.jsonl pictures",
        "kprune plot results.jsonl pictures --format svg",
    ),
)
@click.argument("results", type=click.Path(path_type=Path, exists=True))
@click.argument("folder", type=click.Path(path_type=Path))
@grouped(
    "output", click.option("--format", "ending", type=click.Choice(["png", "svg"]), default="png", show_default=True)
)
@json_option
def plot_command(results: Path, folder: Path, ending: str, as_json: bool) -> None:
    """Draw the RESULTS of a comparison into FOLDER: pictures, and tables in Markdown."""
    from kprune.report.bars import out
    from kprune.report.comparison_figures import plot_comparison

    written = [str(path) for path in plot_comparison(results, folder, ending)]
    click.echo(json.dumps(written)) if as_json else out.print("\n".join(written), soft_wrap=True)
