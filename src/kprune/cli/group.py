"""The group of commands, with errors as one sentence; help and typos import neither torch nor rich."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from kprune.cli.config_file import FILE_NAME, contradicted, read_options
from kprune.cli.help_page import Decorator, apply_options, write_examples, write_options
from kprune.errors import BadOptions, KpruneError

CONTRADICTED = "kprune.contradicted"
"""In a context's `meta`: names of the file's options that give way to the command line."""
GENERAL_OPTIONS: tuple[Decorator, ...] = (
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=lambda ctx, param, value: _use_file(ctx, value),
        help=f"Options in a TOML file, a section per command.  [default: {FILE_NAME}, if there is one]",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Print results and errors only: no progress, no warnings."),
    click.option("-v", "--verbose", is_flag=True, help="Also print what is read and each finished sublayer."),
)
"""Of every command."""


class Work(click.Command):
    """A command with examples that prepares the libraries' messages when its work begins, and not for its help."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = examples
        """Command lines; what follows `  # ` is a comment."""
        apply_options(self, GENERAL_OPTIONS[::-1], "general")

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.group = "general"  # type: ignore[attr-defined]
        return option

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_options(self, ctx, formatter)
        if self.examples:
            write_examples(self.examples, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        ctx.meta[CONTRADICTED] = contradicted(ctx)
        if ctx.meta[CONTRADICTED]:  # again, without these options of the file
            ctx.params.clear()
            rest = super().parse_args(ctx, given)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        is_quiet, is_verbose = ctx.params.pop("quiet"), ctx.params.pop("verbose")
        try:
            if is_quiet and is_verbose:
                raise BadOptions("--quiet and --verbose contradict each other; leave one out.")
            _configure_logging(logging.ERROR if is_quiet else logging.INFO if is_verbose else logging.WARNING)
            from kprune.report.bars import messages

            with messages(is_quiet=is_quiet, is_verbose=is_verbose):
                return super().invoke(ctx)
        except BadOptions as error:
            raise click.UsageError(str(error), ctx=ctx) from error  # with the command's usage line


def _use_file(ctx: click.Context, path: Path | None) -> None:
    """Let the options of the file stand where the command line has none."""
    if not ctx.resilient_parsing:  # shell completion
        try:
            found = read_options(ctx, path)
        except BadOptions as error:
            raise click.UsageError(str(error), ctx=ctx) from error
        ctx.default_map = {name: value for name, value in found.items() if name not in ctx.meta.get(CONTRADICTED, ())}


class Commands(click.Group):
    """Commands whose errors are a sentence, not a traceback."""

    command_class = Work

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort):  # click's own, which are RuntimeErrors
            raise
        except KpruneError as error:
            _fail(str(error))
        except (RuntimeError, MemoryError) as error:
            from kprune.runtime.memory import is_out_of_memory

            if not is_out_of_memory(error):
                raise
            _fail("not enough memory; use fewer --tokens, --offload, or a machine with more memory.")
        except KeyboardInterrupt:
            click.secho("kprune: interrupted; no model was written.", fg="red", err=True)
            sys.exit(130)


def _configure_logging(level: int) -> None:
    import transformers
    from rich.logging import RichHandler

    from kprune.report.bars import err

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for library in ("datasets", "huggingface_hub"):  # their failures are reported once, as our own errors
        logging.getLogger(library).setLevel(logging.ERROR)
    logging.basicConfig(
        level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=err, show_path=False)]
    )
    logging.getLogger("kprune").setLevel(level)


def _fail(sentence: str) -> NoReturn:
    """Print the sentence and exit with 1."""
    from kprune.report.bars import err
    from kprune.runtime.distributed import launched_processes, launched_rank

    processes = launched_processes()
    sender = f"kprune, process {launched_rank()} of {processes}" if processes > 1 else "kprune"
    err.print(f"{sender}: {sentence}", style="red", highlight=False, soft_wrap=True)
    sys.exit(1)
