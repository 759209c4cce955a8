"""The command `kprune`, with errors as one sentence."""

from __future__ import annotations

import logging
import sys
from typing import Any, NoReturn

import click
import transformers
from rich.logging import RichHandler

from kprune.cli.comparing import compare_command, plot_command
from kprune.cli.demo import demo_command
from kprune.cli.deploying import bench_command, export_command
from kprune.cli.evaluating import evaluate_command
from kprune.cli.listing import families_command, inspect_command, tasks_command
from kprune.cli.pruning import prune_command
from kprune.errors import BadOptions, KpruneError
from kprune.report.bars import err
from kprune.runtime.distributed import launched_processes, launched_rank
from kprune.runtime.memory import is_out_of_memory


class Commands(click.Group):
    """Commands whose errors are a sentence, not a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        _configure_logging()
        try:
            return super().invoke(ctx)
        except BadOptions as error:
            raise click.UsageError(str(error)) from error
        except KpruneError as error:
            _fail(str(error))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            _fail("not enough memory; use fewer --tokens, --offload, or a machine with more memory.")
        except KeyboardInterrupt:
            err.print("kprune: interrupted; no model was written.", style="red")
            sys.exit(130)


def _configure_logging() -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for library in ("datasets", "huggingface_hub"):  # their failures are reported once, as our own errors
        logging.getLogger(library).setLevel(logging.ERROR)
    logging.basicConfig(
        level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=err, show_path=False)]
    )


def _fail(sentence: str) -> NoReturn:
    """Print the sentence and exit with 1."""
    processes = launched_processes()
    sender = f"kprune, process {launched_rank()} of {processes}" if processes > 1 else "kprune"
    err.print(f"{sender}: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(1)


@click.group(cls=Commands)
@click.version_option(package_name="kprune")
def main() -> None:
    """Make fine-tuned Hugging Face encoders smaller and faster, without retraining."""


for command in (
    prune_command,
    evaluate_command,
    bench_command,
    export_command,
    compare_command,
    plot_command,
    tasks_command,
    inspect_command,
    families_command,
    demo_command,
):
    main.add_command(command)
