"""The group of commands, with errors as one sentence; help and typos import neither torch nor rich."""

from __future__ import annotations

import logging
import sys
from typing import Any, NoReturn

import click

from kprune.errors import BadOptions, KpruneError


class Work(click.Command):
    """A command that prepares the libraries' messages when its work begins, and not for its help."""

    def invoke(self, ctx: click.Context) -> Any:
        _configure_logging()
        try:
            return super().invoke(ctx)
        except BadOptions as error:
            raise click.UsageError(str(error), ctx=ctx) from error  # with the command's usage line


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


def _configure_logging() -> None:
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


def _fail(sentence: str) -> NoReturn:
    """Print the sentence and exit with 1."""
    from kprune.report.bars import err
    from kprune.runtime.distributed import launched_processes, launched_rank

    processes = launched_processes()
    sender = f"kprune, process {launched_rank()} of {processes}" if processes > 1 else "kprune"
    err.print(f"{sender}: {sentence}", style="red", highlight=False, soft_wrap=True)
    sys.exit(1)
