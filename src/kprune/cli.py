"""The command line: `kprune prune`, `inspect`, `families` and `demo`."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch
import transformers
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from kprune import data, demo
from kprune.errors import KpruneError
from kprune.families import FAMILIES
from kprune.inspection import Inspection, inspect
from kprune.outputs import kind_of
from kprune.prune import Progress, prune
from kprune.report import layers_table
from kprune.settings import CRITERIA, DEFAULT_CRITERION
from kprune.store import Source, fetch, require_free, save

out = Console()
err = Console(stderr=True)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


class Commands(click.Group):
    """Commands whose errors are a sentence, not a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        logging.basicConfig(
            level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=err, show_path=False)]
        )
        try:
            return super().invoke(ctx)
        except KpruneError as error:
            err.print(f"kprune: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
            sys.exit(1)
        except KeyboardInterrupt:
            err.print("kprune: interrupted; nothing was written.", style="red")
            sys.exit(130)


@click.group(cls=Commands)
@click.version_option(package_name="kprune")
def main() -> None:
    """Make fine-tuned Hugging Face encoders smaller and faster, without retraining."""


@main.command("prune")
@click.argument("model")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--reduction", type=float, required=True, help="Share of the encoder's FLOPs to remove, such as 0.6.")
@click.option("--text", type=click.Path(path_type=Path), help="Text file, an example per line.")
@click.option("--data", "table", help="JSONL, CSV, TSV or Parquet file, or a Hugging Face data set (name or folder).")
@click.option("--column", "columns", multiple=True, help="Column with the text; twice for pairs.")
@click.option("--subset", help="Configuration of the data set.")
@click.option("--split", default="train", show_default=True, help="Split of the data set.")
@click.option("--tokens", default=100_000, show_default=True, help="Real tokens to sample.")
@click.option("--max-length", type=click.IntRange(min=8), help="Truncate inputs here.  [default: the model's limit]")
@click.option(
    "--criterion",
    type=click.Choice(list(CRITERIA)),
    default=DEFAULT_CRITERION,
    show_default=True,
    help="How knowledge is measured. " + "; ".join(f"{row.name}: {row.summary}" for row in CRITERIA.values()) + ".",
)
@click.option("--temperature", default=2.0, show_default=True, help="γ: softens predictions.")
@click.option("--rep-weight", type=float, help="λ: weight of representations.  [default: the criterion's]")
@click.option("--head-weight", type=float, help="μ: weight of heads beside neurons.  [default: the criterion's]")
@click.option("--ridge", type=float, help="Steadies the refit of small samples.  [default: 1e-6]")
@click.option("--seed", default=0, show_default=True)
@click.option("--device", help="cpu, cuda, ...  [default: cuda where there is one]")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is a checkpoint.")
@json_option
def prune_command(
    model: str, out_folder: Path, as_json: bool, overwrite: bool, device: str | None, **options: Any
) -> None:
    """Prune MODEL (a folder or hub name) on raw text, and write it to OUT."""
    require_free(out_folder, overwrite=overwrite)
    source = Source(fetch(model), name=model)
    dense = _on_device(source.load(), device)
    batches = _sample(source, dense, options)
    kept = ("reduction", "criterion", "temperature", "rep_weight", "head_weight", "ridge", "seed")
    settings = {name: options[name] for name in kept}
    with progress_bar() as advance:
        pruned = prune(dense, batches, pooling=source.pooling, progress=advance, **settings)
    save(pruned, out_folder, source=source, overwrite=overwrite)
    if as_json:
        steps = [asdict(step) for step in pruned.steps]
        click.echo(
            json.dumps({"folder": str(out_folder), **pruned.summary(), "seconds": pruned.seconds, "steps": steps})
        )
    else:
        show(inspect(out_folder))
        out.print(
            f"Written to {out_folder} in {pruned.seconds:.0f} s. Load it with from_pretrained after `import kprune`."
        )


def _on_device(model: transformers.PreTrainedModel, device: str | None) -> transformers.PreTrainedModel:
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model.to(name)  # type: ignore[arg-type]
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise KpruneError(f"device {name!r} cannot be used ({reason}); leave --device out, or pass cpu.") from error
    return model


def _sample(
    source: Source, model: transformers.PreTrainedModel, options: dict[str, Any]
) -> list[dict[str, torch.Tensor]]:
    if (options["text"] is None) == (options["table"] is None):
        raise click.UsageError("pass the sample with either --text or --data.")
    if options["text"] is not None:
        rows = data.read_lines(options["text"])
    else:
        rows = data.read_rows(options["table"], options["columns"], subset=options["subset"], split=options["split"])
    tokenizer = source.load_tokenizer()
    limits = [data.longest_input(tokenizer, model.config), source.max_length, options["max_length"]]
    return data.draw(
        rows,
        tokenizer,
        tokens=options["tokens"],
        max_length=min(limit for limit in limits if limit is not None),
        seed=options["seed"],
        masked=kind_of(model, pooling=source.pooling).is_vocabulary,
    )


@contextmanager
def progress_bar() -> Iterator[Any]:
    """A bar with the sublayer at hand, the last error after refit and the time left, to standard error."""
    columns = (
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.description:<18}"),
        TextColumn("{task.fields[error]:<14}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Bar(*columns, console=err, transient=True) as bar:
        task = bar.add_task("loading", total=1.0, error="")

        def advance(progress: Progress) -> None:
            bar.update(task, completed=progress.fraction, description=progress.sublayer)
            if progress.step is not None:
                bar.update(task, error=f"error {progress.step.error_after:.4f}")

        yield advance


@main.command("inspect")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--length", type=click.FloatRange(min=1), help="Tokens per input, for FLOPs.  [default: the sample's mean]"
)
@json_option
def inspect_command(folder: Path, length: float | None, as_json: bool) -> None:
    """Show what FOLDER holds: units left per layer, FLOPs, parameters, size."""
    found = inspect(folder, length)
    if as_json:
        click.echo(json.dumps(asdict(found)))
    else:
        show(found)


def show(found: Inspection) -> None:
    """Print an inspection as a picture and three lines."""
    out.print(layers_table(found.shape))
    dense, present = found.flops
    removed = 1 - present / dense
    out.print(
        f"FLOPs       {present / 1e9:9.3f} G of {dense / 1e9:.3f} G at {found.length:.0f} tokens: {removed:.1%} removed"
    )
    dense_parameters, parameters = found.parameters
    out.print(f"parameters  {parameters / 1e6:9.2f} M of {dense_parameters / 1e6:.2f} M (embeddings and head included)")
    out.print(f"on disk     {found.bytes_on_disk / 1e6:9.1f} MB")


@main.command("families")
@json_option
def families_command(as_json: bool) -> None:
    """List the model families that can be pruned."""
    if as_json:
        click.echo(json.dumps({name: asdict(family) for name, family in FAMILIES.items()}))
    else:
        for name in sorted(FAMILIES):
            out.print(name)


@main.command("demo")
@click.argument("out_folder", metavar="[OUT]", type=click.Path(path_type=Path), default=Path("demo"))
@click.option("--reduction", default=0.5, show_default=True, help="Share of the encoder's FLOPs to remove.")
@click.option("--tokens", default=30_000, show_default=True, help="Real tokens to sample.")
@json_option
def demo_command(out_folder: Path, reduction: float, tokens: int, as_json: bool) -> None:
    """Prune all-MiniLM-L6-v2 on Python's own documentation, and compare."""
    with progress_bar() as advance:
        result = demo.run(out_folder, reduction=reduction, tokens=tokens, progress=advance)
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        show(inspect(out_folder / "model"))
        for table in result.tables():
            out.print(table)
        out.print(f"The model is in {out_folder / 'model'}, the picture in {result.picture}.")
