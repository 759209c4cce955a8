"""`kprune bench` and `kprune export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kprune.checkpoints.files import short_names
from kprune.cli.group import Work
from kprune.cli.help_page import grouped
from kprune.cli.options import (
    data_options,
    device_option,
    dtype_option,
    json_option,
    overwrite_option,
    parse_shape,
    report_option,
    require_picture,
    require_report,
    take_data_options,
    test_split_option,
    write_report,
)
from kprune.cli.repeating import command_text
from kprune.deploy.runtimes import RUNTIMES
from kprune.deploy.targets import LAYOUTS, TARGETS
from kprune.errors import BadOptions, KpruneError

if TYPE_CHECKING:
    from kprune.deploy.benchmark import Bench


@click.command(
    "bench",
    cls=Work,
    examples=(
        "kprune bench small --against MODEL --shape 32x128 --shape 1x32",
        "kprune bench small --against MODEL --runtime onnxruntime --threads 1",
    ),
)
@click.argument("model")
@click.option("--against", multiple=True, help="Another model; the first is the reference of speed-ups.")
@click.option("--shape", "shapes", multiple=True, metavar="BATCHxLENGTH", default=("32x128", "1x32"), show_default=True)
@click.option(
    "--runtime",
    "runtimes",
    multiple=True,
    type=click.Choice(list(RUNTIMES)),
    help="Where to run.  [default: torch, and onnxruntime and openvino if they are installed]",
)
@grouped("advanced", click.option("--threads", type=click.IntRange(min=1), help="Threads.  [default: torch's]"))
@grouped(
    "advanced", click.option("--device", default="cpu", show_default=True, help="For torch; graphs run on the CPU.")
)
@dtype_option("Type of the weights, for torch.  [default: float32 on a CPU, the model's own on a GPU]")
@grouped(
    "advanced", click.option("--seconds", default=4.0, show_default=True, help="For each model, shape and runtime.")
)
@grouped(
    "output", click.option("--picture", type=click.Path(path_type=Path), help="Draw the times into this PNG or SVG.")
)
@report_option
@json_option
@click.pass_context
def bench_command(
    ctx: click.Context,
    /,
    model: str,
    against: tuple[str, ...],
    shapes: tuple[str, ...],
    runtimes: tuple[str, ...],
    picture: Path | None,
    report: Path | None,
    as_json: bool,
    dtype: str | None,
    **options: Any,
) -> None:
    """Time MODEL on your batch, length, runtime and threads; models to compare with take turns."""
    parsed = [parse_shape(shape) for shape in shapes]
    require_report(report)
    if picture is not None:
        require_picture(picture)
    from kprune.checkpoints.source import Source, fetch
    from kprune.deploy.benchmark import Contender, bench, timed_seconds
    from kprune.jobs.check_model import ensure_row
    from kprune.pruning.progress import Progress
    from kprune.report.bars import err, out, progress_bar
    from kprune.report.summary import describe_bench, print_bench

    names = (model, *against)
    contenders = [
        Contender(short, Source(fetch(name), name=name)) for name, short in zip(names, short_names(names), strict=True)
    ]
    for contender in contenders:
        if contender.graph is None:
            ensure_row(contender.source)
    chosen = runtimes or _usual_runtimes(dtype)
    expected = timed_seconds(len(names), len(parsed), chosen, options["seconds"])
    err.print(describe_bench(len(names), parsed, chosen, expected), highlight=False, soft_wrap=True)
    with progress_bar() as advance:
        result = bench(
            contenders,
            shapes=parsed,
            runtimes=chosen,
            dtype=dtype,
            progress=lambda fraction, phase: advance(Progress(fraction, phase, None)),
            **options,
        )
    click.echo(json.dumps(result.as_json())) if as_json else print_bench(result, out)
    if picture is not None:
        _draw(result, picture)
    if report is not None:
        from kprune.report.html.documents import bench_page

        write_report(report, bench_page(result.as_json(), command=command_text(ctx)))


def _usual_runtimes(dtype: str | None) -> list[str]:
    """The installed runtimes that start at once and can run the type."""
    installed = [name for name, runtime in RUNTIMES.items() if runtime.is_installed and not runtime.compiles]
    return [name for name in installed if dtype in (None, "float32") or RUNTIMES[name].target is None]


def _draw(result: Bench, picture: Path) -> None:
    from kprune.report.figures import draw_speed

    try:
        draw_speed(result, picture)
    except OSError as error:
        raise KpruneError(f"{picture} cannot be written ({error.strerror}); name another file.") from error


@click.command(
    "export",
    cls=Work,
    examples=(
        "kprune export small graph --to onnx",
        "kprune export small graph --to openvino --int8 --text sentences.txt  # measures what int8 changes",
        "kprune export small-lm chat --to gguf --dtype float16  # a language model, for llama.cpp",
    ),
)
@click.argument("model")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--to", type=click.Choice(list(TARGETS)), help="Runtime to write for; gguf is for llama.cpp.  [default: onnx]"
)
@click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    default="plain",
    show_default=True,
    help="hub: weights and the graphs of all runtimes, in float32 and int8, where servers look for them.",
)
@click.option("--int8", is_flag=True, help="Quantise the weights; --task, --data or --text measure the cost.")
@click.option(
    "--int8-max-drop",
    type=float,
    metavar="POINTS",
    help="Leave the most sensitive matrices in float32 until int8 loses at most this on the data.",
)
@dtype_option("Type of the weights in a GGUF file, float32 or float16.  [default: float32]")
@overwrite_option
@data_options
@device_option
@json_option
@test_split_option
def export_command(
    model: str,
    out_folder: Path,
    to: str | None,
    layout: str,
    int8: bool,
    int8_max_drop: float | None,
    dtype: str | None,
    overwrite: bool,
    device: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write MODEL as ONNX or OpenVINO for any batch and length, or as GGUF for llama.cpp, checked against torch."""
    if device:
        raise BadOptions("exported graphs run on the CPU; leave --device out.")
    if layout == "hub" and to:
        raise BadOptions("the hub layout has the graphs of all runtimes; leave --to out.")
    if dtype and to != "gguf":
        raise BadOptions(f"graphs have float32 weights, not {dtype}; leave --dtype out, or add --to gguf.")
    if int8 and to == "gguf":
        raise BadOptions("GGUF files are written in float32 or float16; leave --int8 out.")
    from kprune.checkpoints.atomic import require_writable
    from kprune.checkpoints.source import Source, fetch
    from kprune.jobs.export_checkpoint import export_checkpoint
    from kprune.report.bars import out, progress_bar
    from kprune.report.summary import print_export_result

    data = take_data_options(options)
    require_writable(out_folder, overwrite=overwrite)
    source = Source(fetch(model), name=model)
    result = export_checkpoint(
        source,
        out_folder,
        data,
        to=to or "onnx",
        int8=int8,
        dtype=dtype,
        layout=layout,
        int8_max_drop=int8_max_drop,
        overwrite=overwrite,
        show_progress=progress_bar,
    )
    if as_json:
        click.echo(json.dumps(result.as_json(), default=str))
    else:
        print_export_result(result, out)
