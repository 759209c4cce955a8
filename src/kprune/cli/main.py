"""The command `kprune`."""

from __future__ import annotations

import click

from kprune.cli.checking import check_command
from kprune.cli.comparing import compare_command, plot_command
from kprune.cli.demo import demo_command
from kprune.cli.deploying import bench_command, export_command
from kprune.cli.evaluating import evaluate_command
from kprune.cli.group import Commands
from kprune.cli.healing import heal_command
from kprune.cli.listing import families_command, inspect_command, tasks_command
from kprune.cli.pruning import prune_command
from kprune.cli.reporting import report_command
from kprune.cli.self_containing import self_contain_command
from kprune.cli.sweeping import sweep_command


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`kprune COMMAND --help` lists a command's options, with examples.",
)
@click.version_option(package_name="kprune")
def main() -> None:
    """Make fine-tuned Hugging Face encoders smaller and faster, without retraining."""


for command in (
    prune_command,
    heal_command,
    sweep_command,
    check_command,
    evaluate_command,
    bench_command,
    export_command,
    self_contain_command,
    compare_command,
    plot_command,
    report_command,
    tasks_command,
    inspect_command,
    families_command,
    demo_command,
):
    main.add_command(command)
