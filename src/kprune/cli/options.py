"""Options that several commands share; those of a run are generated from `PruneConfig`, `HealConfig` and `RunConfig`.

This module and those of the commands import torch and transformers in functions only: help must answer at once.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kprune.cli.help_page import Decorator, apply_options, grouped
from kprune.config import DEFAULT_TOKENS, DTYPES, HealConfig, PruneConfig, RunConfig, info_of, type_of
from kprune.errors import BadOptions, KpruneError
from kprune.evaluation.metrics import METRICS
from kprune.pruning.choices import CHOICES

if TYPE_CHECKING:
    from kprune.jobs.data_options import DataOptions

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = grouped("output", click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text."))
report_option = grouped(
    "output",
    click.option(
        "--report",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Also write a page: one HTML file.",
        metavar="FILE",
    ),
)
overwrite_option = grouped(
    "output",
    click.option("--overwrite", is_flag=True, help="Replace OUT if it is a checkpoint or an exported folder."),
)


test_options: tuple[Decorator, ...] = (
    click.option("--metric", "metrics", multiple=True, help=f"One of {', '.join(METRICS)}."),
    click.option(
        "--limit",
        type=click.IntRange(min=1),
        help="Test on this many rows, evenly spread; of wikitext2 and c4, on the first windows.",
    ),
    click.option(
        "--window",
        type=click.IntRange(min=2),
        help="Tokens per window of the test, for causal language models.  [default: 1024]",
    ),
    click.option(
        "--stride",
        type=click.IntRange(min=1),
        help="Tokens between the starts of two windows.  [default: --window]",
    ),
)


def data_options(command: Any) -> Any:
    """Options for the texts and labels that a command reads, as `DataOptions` takes them."""
    return apply_options(
        apply_options(command, test_options, "test"),
        (
            click.option(
                "--text",
                type=click.Path(path_type=Path),
                multiple=True,
                help="Text file, one example per line, also .gz; several are read in order; - is standard input.",
            ),
            click.option(
                "--images", type=click.Path(path_type=Path), help="Folder of images, for models that read images."
            ),
            click.option(
                "--audio", type=click.Path(path_type=Path), help="Folder of sounds, for models that read sound."
            ),
            click.option(
                "--folder-labels", is_flag=True, help="Sub-folders of --images or --audio are named after the classes."
            ),
            click.option("--task", help="One of `kprune tasks`, from the hub, or from the folder --data."),
            click.option(
                "--data",
                "table",
                multiple=True,
                help="JSONL, CSV or TSV file (also .gz) or Parquet file; several are read in order; - is JSON lines "
                "from standard input. Or a Hugging Face data set (name or folder); with --task, the folder of the data "
                "sets' folders.",
            ),
            click.option(
                "--column",
                "--text-column",
                "columns",
                multiple=True,
                help="Column with the text (twice for pairs), the images or the sounds.",
            ),
            click.option("--label-column", "label", help="Column with the labels."),
            click.option("--subset", help="Configuration of the data set."),
            click.option(
                "--max-length",
                type=click.IntRange(min=8),
                help="Truncate inputs here; of a causal language model, tokens per block of the sample.  "
                "[default: the model's limit; blocks of 256]",
            ),
        ),
        "from what",
    )


test_split_option = grouped(
    "from what",
    click.option("--split", help="Split of the data set to test on.  [default: the task's, or validation]"),
)
guard_option = grouped(
    "how much",
    click.option(
        "--guard/--no-guard",
        default=True,
        show_default=True,
        help="Hold the upper end of the drop's 95 % interval to --max-drop, or its estimate only.",
    ),
)
evaluate_option = grouped(
    "test", click.option("--evaluate", "is_tested", is_flag=True, help="Test the result against the dense model.")
)
validation_option = grouped(
    "test",
    click.option(
        "--validation", help="Test on this file, or split of --data.  [default: the task's, or a tenth held out]"
    ),
)


def split_option(purpose: str) -> Decorator:
    """The option `--split` of a command that samples one split and tests on another."""
    return grouped("from what", click.option("--split", help=f"Split of the data set to {purpose}.  [default: train]"))


def dtype_option(help: str) -> Decorator:
    """The option `--dtype`, with what it means for the command."""
    return grouped("output", click.option("--dtype", type=click.Choice(DTYPES), help=help))


tokens_option = grouped(
    "from what",
    click.option(
        "--tokens",
        default=DEFAULT_TOKENS,
        show_default=True,
        help="Real tokens to sample (an image of 16 × 16 patches has about 200).",
    ),
)


def take_data_options(options: dict[str, Any]) -> DataOptions:
    """Remove the data options from a command's options, and return them as one object."""
    from kprune.jobs.data_options import DataOptions

    names = {each.name for each in fields(DataOptions)} & set(options)
    return DataOptions(**{name: options.pop(name) for name in names})


def config_options(
    config: type,
    *,
    only: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Decorator:
    """A decorator with one option per field of `PruneConfig`, `HealConfig` or `RunConfig`."""
    chosen = [
        grouped(
            info_of(each).group, _config_option(config, each, {each.name: each.default, **(defaults or {})}[each.name])
        )
        for each in fields(config)
        if info_of(each).on_command_line and (only is None or each.name in only) and each.name not in exclude
    ]
    return lambda command: apply_options(command, chosen)


def _config_option(config: type, each: Field[Any], default: Any) -> Decorator:
    info, kind, flag = info_of(each), type_of(config, each.name), "--" + each.name.replace("_", "-")
    text, settings = info.help, {"default": default, "show_default": default is not None}
    if kind is bool:
        return click.option(f"{flag}/--no-{each.name.replace('_', '-')}", help=text, **settings)
    if config is PruneConfig and each.name in CHOICES:
        values = CHOICES[each.name]
        text += " " + "; ".join(f"{name}: {summary}" for name, summary in values.items()) + "."
        return click.option(flag, type=click.Choice(list(values)), help=text, **settings)
    if info.flag_value is not None:
        settings |= {"is_flag": False, "flag_value": info.flag_value}
        text += f"  [without a value: {info.flag_value}]" if default is None else ""
    if kind is Path:
        kind = click.Path(path_type=Path)  # type: ignore[assignment]
    return click.option(flag, type=kind, help=text, metavar=info.metavar, **settings)


def take_heal_config(options: dict[str, Any], **others: Any) -> HealConfig | None:
    """Remove the options of healing, which are unset without --heal, and return them as one object."""
    names = [each.name for each in fields(HealConfig) if each.name in options and each.name not in SHARED]
    values = {name: options.pop(name) for name in names}
    return None if values["heal"] is None else HealConfig(**values, **others)


SHARED = ("seed", "pooling")
"""Fields that pruning and healing have in common."""

device_option = config_options(RunConfig, only=["device"])


def take_config(config: type[Any], options: dict[str, Any], **others: Any) -> Any:
    """Remove a configuration's options from a command's options, and return them as one object."""
    names = {each.name for each in fields(config)} & set(options)
    values = {name: options.pop(name) for name in names}
    return config(**{name: value for name, value in values.items() if value is not None}, **others)


def parse_shape(text: str) -> tuple[int, int]:
    """Batch and length, from BATCHxLENGTH."""
    batch, _, length = text.lower().replace("×", "x").partition("x")
    if not (batch.isdecimal() and length.isdecimal() and int(batch) and int(length)):
        raise BadOptions(f"the shape {text!r} is not BATCHxLENGTH; 32x128 means 32 texts of 128 tokens.")
    return int(batch), int(length)


def require_report(path: Path | None) -> None:
    """Raise, before any work, if the page could not be written."""
    if path is not None and (path.suffix not in (".html", ".htm") or not path.resolve().parent.is_dir()):
        raise BadOptions(f"{path} cannot be written; name an .html file in a folder that exists.")


def write_report(path: Path, content: str) -> None:
    """Write a page, and say on standard error where it is."""
    from kprune.report.bars import err
    from kprune.report.html.page import write_page

    write_page(path, content)
    err.print(f"The page is {path}; open it in a browser.", highlight=False, soft_wrap=True)


def require_picture(path: Path) -> None:
    """Raise, before any work, if a picture could not be drawn."""
    if path.suffix not in (".png", ".svg") or not path.resolve().parent.is_dir():
        raise BadOptions(f"{path} cannot be drawn; name a .png or .svg file in a folder that exists.")
    try:
        existed = path.exists()
        path.open("ab").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise BadOptions(f"{path} cannot be written ({error.strerror}); name another file for the picture.") from error
    if importlib.util.find_spec("matplotlib") is None:
        raise KpruneError("a picture needs the extra: pip install 'kprune[plots]'.")
