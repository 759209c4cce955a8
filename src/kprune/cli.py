"""The command line: `kprune prune`, `evaluate`, `bench`, `export`, `compare`, `plot`, `inspect` and more."""

from __future__ import annotations

import copy
import json
import logging
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import click
import torch
import transformers
from rich.logging import RichHandler

from kprune import demo
from kprune.bars import counting_bar, err, out, progress_bar, quiet
from kprune.budget import BUDGETS
from kprune.checkpoint import Checkpoint
from kprune.compare import Grid, compare, open_cells, read_grid, read_runs
from kprune.data import python_documentation
from kprune.drop import Found, Trial, largest_reduction
from kprune.errors import KpruneError
from kprune.evaluate import Evaluation, check, evaluate
from kprune.export import export
from kprune.families import FAMILIES
from kprune.graphs import TARGETS
from kprune.inspection import Inspection, inspect
from kprune.latency import Latency, aim, default_cache, measure_latency, measured_speedup
from kprune.memory import gpu_peak_megabytes, is_out_of_memory, peak_megabytes
from kprune.methods import METHODS
from kprune.options import (
    data_options,
    json_option,
    length_limit,
    parse_shape,
    require_one_source,
    require_one_vocabulary,
    require_picture,
    sample_and_test,
    sample_of,
    short_names,
    test_of,
)
from kprune.outputs import QUESTION_ANSWERING, Prediction, kind_of
from kprune.plots import plot
from kprune.prune import Pruner, own_folder
from kprune.pruned import Progress, Pruned
from kprune.ranks import everyone, joined, launched, launched_rank, own_device, rank
from kprune.report import draw_speed, evaluation_table, layers_table, speed_tables, tasks_table, what_eats
from kprune.runtimes import RUNTIMES, on_device
from kprune.settings import CRITERIA, DEFAULT_ALIGN, DEFAULT_CRITERION, SEARCHES
from kprune.speed import Contender, bench
from kprune.store import Source, fetch, require_free, save, tidy
from kprune.tasks import TASKS, Test


class Commands(click.Group):
    """Commands whose errors are a sentence, not a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        for library in ("datasets", "huggingface_hub"):  # what they could not reach is told once, in our own words
            logging.getLogger(library).setLevel(logging.ERROR)
        logging.basicConfig(
            level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=err, show_path=False)]
        )
        try:
            return super().invoke(ctx)
        except KpruneError as error:
            _complain(str(error))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            _complain("there is not enough memory; use fewer --tokens, --offload, or a machine with more of it.")
        except KeyboardInterrupt:
            err.print("kprune: interrupted; no model was written.", style="red")
            sys.exit(130)


def _complain(sentence: str) -> NoReturn:
    """Say what went wrong, and end."""
    who = f"kprune, process {launched_rank()} of {launched()}" if launched() > 1 else "kprune"
    err.print(f"{who}: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(1)


@click.group(cls=Commands)
@click.version_option(package_name="kprune")
def main() -> None:
    """Make fine-tuned Hugging Face encoders smaller and faster, without retraining."""


@main.command("prune")
@click.argument("model")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--reduction", type=float, help="Share of the encoder's FLOPs to remove, such as 0.6.")
@click.option("--speedup", type=float, help="Instead: make the model so many times as fast, measured on --shape.")
@click.option("--max-drop", type=float, help="Instead: remove as much as costs at most so many points on the test.")
@click.option(
    "--guard/--no-guard",
    default=True,
    show_default=True,
    help="Hold the upper end of the drop's 95 % interval to --max-drop, or its estimate only.",
)
@click.option("--evaluate", "is_tested", is_flag=True, help="Test the result beside the dense model.")
@click.option("--validation", help="Test on this file, or split of --data.  [default: the task's, or a tenth held out]")
@data_options
@click.option("--split", help="Split of the data set to sample.  [default: train]")
@click.option("--tokens", default=100_000, show_default=True, help="Real tokens to sample.")
@click.option(
    "--criterion",
    type=click.Choice(list(CRITERIA)),
    default=DEFAULT_CRITERION,
    show_default=True,
    help="How knowledge is measured. " + "; ".join(f"{row.name}: {row.summary}" for row in CRITERIA.values()) + ".",
)
@click.option(
    "--method",
    type=click.Choice(list(METHODS)),
    default="kprune",
    show_default=True,
    help="K-prune or a rival. " + "; ".join(f"{row.name}: {row.summary}" for row in METHODS.values()) + ".",
)
@click.option("--search", type=click.Choice(SEARCHES), default="global", show_default=True, help="Ablation: uniform.")
@click.option("--refit/--no-refit", default=True, show_default=True, help="Ablation: one shot, nothing refitted.")
@click.option(
    "--budget",
    type=click.Choice(list(BUDGETS)),
    default="flops",
    show_default=True,
    help="What --reduction is a share of: the encoder's FLOPs, or its units' parameters.",
)
@click.option("--align", default=DEFAULT_ALIGN, show_default=True, help="Keep neurons by multiples of this.")
@click.option("--shape", default="32x128", show_default=True, metavar="BATCHxLENGTH", help="What --speedup is about.")
@click.option(
    "--runtime",
    type=click.Choice(list(RUNTIMES)),
    default="torch",
    show_default=True,
    help="Runtime that --speedup is about.",
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads that --speedup is about.  [default: torch's]")
@click.option("--cache/--no-cache", default=True, show_default=True, help="Keep the times of --speedup for later runs.")
@click.option("--temperature", default=2.0, show_default=True, help="γ: softens predictions.")
@click.option("--rep-weight", type=float, help="λ: weight of representations.  [default: the criterion's]")
@click.option("--head-weight", type=float, help="μ: weight of heads beside neurons.  [default: the criterion's]")
@click.option("--refresh", type=int, help="Measure anew every so many sublayers; 0: once.  [default: the criterion's]")
@click.option("--ridge", type=float, help="Steadies the refit of small samples.  [default: 1e-6]")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--offload",
    metavar="PLACE",
    help="Keep streams on a disk, in this folder, or in a GPU's 'host': large samples take little memory then.",
)
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="Keep finished sublayers in this folder: killed, the same command goes on from there.",
)
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is a checkpoint.")
def prune_command(
    model: str, out_folder: Path, as_json: bool, overwrite: bool, device: str | None, **options: Any
) -> None:
    """Prune MODEL (a folder or hub name) on raw text, and write it to OUT.

    Started by torchrun, several processes share the sample: torchrun --nproc-per-node 2 -m kprune prune ...
    """
    if sum(options[name] is not None for name in ("reduction", "max_drop", "speedup")) != 1:
        raise click.UsageError("pass either --reduction or --max-drop, or --speedup.")
    if options["speedup"] is not None and (options["method"], options["budget"]) != ("kprune", "flops"):
        raise click.UsageError("--speedup is a budget of its own, and kprune's; leave --budget and --method out.")
    if options["speedup"] is not None and options["search"] == "uniform":
        raise click.UsageError("--search uniform keeps the same share everywhere, and cannot aim at a --speedup.")
    if options["checkpoint"] and (options["method"] != "kprune" or options["reduction"] is None):
        raise click.UsageError("--checkpoint goes with --reduction, and with kprune's own method.")
    if options["checkpoint"] and options["checkpoint"].resolve().is_relative_to(out_folder.resolve()):
        raise click.UsageError("--checkpoint must be a folder outside OUT.")
    if launched() > 1 and (options["method"] != "kprune" or options["reduction"] is None):
        raise click.UsageError("several processes go with --reduction, and with kprune's own method.")
    with joined(own_device(device)), quiet(launched_rank() > 0):
        _prune_and_save(model, out_folder, as_json, overwrite, own_device(device), options)


def _prune_and_save(
    model: str, out_folder: Path, as_json: bool, overwrite: bool, device: str | None, options: dict[str, Any]
) -> None:
    shape = parse_shape(options["shape"])
    if rank() == 0:
        tidy(out_folder)
    kept = Checkpoint(own_folder(options["checkpoint"])) if options["checkpoint"] else None
    # Killed after OUT was written, and before the checkpoint was taken away, a run writes it again.
    overwrite = everyone(rank() > 0 or (kept is not None and kept.has_written(out_folder))) or overwrite
    require_free(out_folder, overwrite=overwrite)
    source = Source(fetch(model), name=model)
    dense = on_device(source.load(), device)
    sample, test = sample_and_test(options)
    if test is not None:
        check(dense, source.load_tokenizer(), test, pooling=source.pooling)
    batches = sample_of(source, dense, sample, options)
    latency = None
    if options["speedup"] is not None:
        latency = _latency(_in_float32(dense), shape, options)
        latency.reduction(options["speedup"])  # refused at once where it is out of reach
        options["budget"] = latency.budget
    names = (
        "criterion",
        "temperature",
        "rep_weight",
        "head_weight",
        "ridge",
        "seed",
        "search",
        "refit",
        "budget",
        "align",
        "refresh",
        "offload",
    )
    pruner = Pruner(dense, batches, pooling=source.pooling, **{name: options[name] for name in names})
    if latency is not None:
        options["reduction"] = aim(pruner, latency, options["speedup"])
    pruned, evaluation, trials = _prune(pruner, source, dense, test if rank() == 0 else None, options)
    reached, told_of_speed = None, ""
    if latency is not None:
        reached = measured_speedup(_in_float32(pruned.model), _in_float32(dense), latency)
        told_of_speed = (
            f"{reached:.2f} × as fast as before, {options['speedup']:g} × asked: batch {latency.batch} × "
            f"{latency.length} tokens, {latency.runtime}, {latency.threads} threads."
        )
    if rank() == 0:
        save(
            pruned,
            out_folder,
            source=source,
            overwrite=overwrite,
            evaluation=evaluation,
            note=told_of_speed,
            written=lambda partial: kept.add_result(partial, out_folder) if kept else None,
        )
    if options["checkpoint"] and everyone(True):  # the model is written
        _forget(options["checkpoint"])
    if rank() > 0:
        return
    if as_json:
        told = {"folder": str(out_folder), **pruned.summary(), "seconds": pruned.seconds}
        told |= {"peak_megabytes": peak_megabytes(), "gpu_peak_megabytes": gpu_peak_megabytes()}
        if latency is not None:
            told["speedup"] = {"asked": options["speedup"], "measured": reached, "latency": asdict(latency)}
        told["steps"] = [asdict(step) for step in pruned.steps]
        told["trials"] = [asdict(trial) for trial in trials]
        told["evaluation"] = evaluation.as_json() if evaluation else None
        click.echo(json.dumps(told))
        return
    show(inspect(out_folder))
    if evaluation:
        show_evaluation(evaluation, "pruned", "dense")
    if told_of_speed:
        out.print(f"measured    {told_of_speed}", highlight=False, soft_wrap=True)
    on_gpu = gpu_peak_megabytes()
    peak = f"{peak_megabytes():,.0f} MB of memory" + ("" if on_gpu is None else f" and {on_gpu:,.0f} MB of the GPU's")
    out.print(
        f"Written to {out_folder} in {pruned.seconds:.0f} s; at the peak the process held {peak}. "
        "Load it with from_pretrained after `import kprune`."
    )


def _forget(folder: Path) -> None:
    """Take a checkpoint away, every process its own part."""
    Checkpoint(own_folder(folder)).remove()
    if everyone(True) and rank() == 0 and folder.exists():
        with suppress(OSError):  # something else is in it
            folder.rmdir()


def _latency(model: transformers.PreTrainedModel, shape: tuple[int, int], options: dict[str, Any]) -> Latency:
    """Times of the model's parts, measured with a bar, or from the cache."""
    with progress_bar() as advance:
        advance(Progress(0.0, "timing heads and neurons", None))
        return measure_latency(
            model,
            batch=shape[0],
            length=shape[1],
            runtime=options["runtime"],
            threads=options["threads"],
            cache=default_cache() if options["cache"] else None,
        )


def _prune(
    pruner: Pruner, source: Source, dense: transformers.PreTrainedModel, test: Test | None, options: dict[str, Any]
) -> tuple[Pruned, Evaluation | None, tuple[Trial, ...]]:
    """The model pruned as the options say, what a test says of it, and what was tried on the way."""
    if options["max_drop"] is not None and test is not None:
        found = _search(pruner, source, dense, test, options)
        return found.pruned, found.evaluation, found.trials
    with progress_bar() as advance:
        if options["checkpoint"]:
            pruned = pruner.prune(options["reduction"], checkpoint=options["checkpoint"], progress=advance)
        else:
            pruned = METHODS[options["method"]].prune(pruner, options["reduction"], advance)
    return pruned, None if test is None else _evaluate(pruned.model, source, test, options, dense), ()


def _search(
    pruner: Pruner, source: Source, dense: transformers.PreTrainedModel, test: Test, options: dict[str, Any]
) -> Found:
    """The largest reduction within the drop, telling of each trial as it is made."""
    recalled: dict[int, Prediction] = {}
    with progress_bar() as advance:

        def tell(trial: Trial) -> None:
            verdict = "within" if trial.passed else "beyond"
            err.print(
                f"{trial.reduction:6.1%} removed: {round(trial.drop, 2) + 0.0:+.2f} points lost "
                f"({trial.low:+.2f} to {trial.high:+.2f}), {verdict} {options['max_drop']:g}",
                highlight=False,
            )

        return largest_reduction(
            lambda reduction: METHODS[options["method"]].prune(pruner, reduction, advance),
            lambda pruned: _evaluate(pruned.model, source, test, options, dense, bar=False, recalled=recalled),
            options["max_drop"],
            guard=options["guard"],
            tried=tell,
        )


def _evaluate(
    model: transformers.PreTrainedModel,
    source: Source,
    test: Test,
    options: dict[str, Any],
    against: transformers.PreTrainedModel | None,
    *,
    against_pooling: str | None = None,
    recalled: dict[int, Prediction] | None = None,
    bar: bool = True,
) -> Evaluation:
    """A model's evaluation, and another's beside it, in float32, with a bar."""
    with progress_bar(disable=not bar) as advance:
        return evaluate(
            _in_float32(model),
            source.load_tokenizer(),
            test,
            against=None if against is None else _in_float32(against),
            pooling=source.pooling,
            against_pooling=against_pooling,
            recalled=recalled,
            max_length=length_limit(source, options),
            progress=lambda fraction: advance(Progress(fraction, test.name, None)),
        )


def _in_float32(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """The model itself, or a copy where its weights are coarser: half precision is slow and rough on a CPU."""
    return model if model.dtype == torch.float32 else copy.deepcopy(model).float()


@main.command("evaluate")
@click.argument("model")
@click.option("--against", help="Compare with this model, such as the dense one.")
@data_options
@click.option("--split", help="Split of the data set to test on.  [default: the task's, or validation]")
def evaluate_command(model: str, against: str | None, as_json: bool, device: str | None, **options: Any) -> None:
    """Test MODEL on a task, or on your own data, with intervals; without labels, tell how it differs from another."""
    require_one_source(options)
    test = test_of(options, options["split"])
    source = Source(fetch(model), name=model)
    loaded = on_device(source.load(), device)
    if against is None:
        result = _evaluate(loaded, source, test, options, None)
    else:
        theirs = Source(fetch(against), name=against)
        require_one_vocabulary(source, theirs)
        other = on_device(theirs.load(), device)
        result = _evaluate(loaded, source, test, options, other, against_pooling=theirs.pooling)
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        show_evaluation(result, source.name, against or "")


def show_evaluation(result: Evaluation, name: str, other: str) -> None:
    """Print an evaluation as a table, and what should be known of it."""
    out.print(evaluation_table(result, Path(name).name, Path(other).name))
    for note in result.notes:
        out.print(f"Note: {note}", highlight=False)


@main.command("bench")
@click.argument("model")
@click.option("--against", multiple=True, help="Another model; the first is the reference of speed-ups.")
@click.option("--shape", "shapes", multiple=True, metavar="BATCHxLENGTH", default=("32x128", "1x32"), show_default=True)
@click.option(
    "--runtime",
    "runtimes",
    multiple=True,
    type=click.Choice(list(RUNTIMES)),
    help="Where to run.  [default: torch, and onnxruntime and openvino where they are installed]",
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads.  [default: torch's]")
@click.option("--device", default="cpu", show_default=True, help="For torch; graphs run on the CPU.")
@click.option("--seconds", default=4.0, show_default=True, help="For each model, shape and runtime.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the times into this PNG or SVG.")
@json_option
def bench_command(
    model: str,
    against: tuple[str, ...],
    shapes: tuple[str, ...],
    runtimes: tuple[str, ...],
    picture: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Time MODEL on your batch, length, runtime and threads, beside other models, taking turns."""
    installed = [name for name, row in RUNTIMES.items() if row.is_installed and not row.compiles]
    if picture is not None:
        require_picture(picture)
    names = (model, *against)
    contenders = [
        Contender(short, Source(fetch(name), name=name)) for name, short in zip(names, short_names(names), strict=True)
    ]
    with progress_bar() as advance:
        result = bench(
            contenders,
            shapes=[parse_shape(shape) for shape in shapes],
            runtimes=runtimes or installed,
            progress=lambda fraction, what: advance(Progress(fraction, what, None)),
            **options,
        )
    if picture is not None:
        draw_speed(result, picture)
    if as_json:
        click.echo(json.dumps(result.as_json()))
        return
    for table in speed_tables(result):
        out.print(table, "")
    for timing in result.timings:
        if timing.loss is not None:
            out.print(what_eats(timing), highlight=False, soft_wrap=True)


@main.command("export")
@click.argument("model")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--to", type=click.Choice(list(TARGETS)), default="onnx", show_default=True)
@click.option("--int8", is_flag=True, help="Quantise the weights; say what it costs with --task, --data or --text.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is a checkpoint or an exported folder.")
@data_options
@click.option("--split", help="Split of the data set to test on.  [default: the task's, or validation]")
def export_command(
    model: str, out_folder: Path, to: str, int8: bool, overwrite: bool, as_json: bool, **options: Any
) -> None:
    """Write MODEL as ONNX or OpenVINO for any batch and length, checked against torch on real text."""
    require_free(out_folder, overwrite=overwrite)
    source = Source(fetch(model), name=model)
    dense = source.load()
    test = _export_test(dense, source, int8, options)
    exported = export(source, out_folder, to=to, int8=int8, overwrite=overwrite)
    evaluation = None if test is None else _evaluate(exported.model(dense), source, test, options, dense)
    if as_json:
        told = {**asdict(exported), "folder": str(exported.folder), "file": str(exported.file)}
        click.echo(json.dumps({**told, "evaluation": evaluation.as_json() if evaluation else None}))
        return
    before, after = exported.bytes
    out.print(
        f"{exported.file}: {after / 1e6:.1f} MB ({before / 1e6:.1f} MB as safetensors); on {exported.texts} texts its "
        f"outputs differ from torch's by at most {exported.difference:.2g}.",
        highlight=False,
    )
    if evaluation is not None:
        show_evaluation(evaluation, f"{to} int8" if int8 else to, "torch")


def _export_test(
    dense: transformers.PreTrainedModel, source: Source, int8: bool, options: dict[str, Any]
) -> Test | None:
    """What an exported model is tested on: what the options name, or stock text where int8 changes its outputs."""
    if options["device"]:
        raise click.UsageError("graphs run on the CPU here; leave --device out.")
    if options["text"] or options["task"] or options["table"]:
        require_one_source(options)
        test = test_of(options, options["split"])
        check(dense, source.load_tokenizer(), test, pooling=source.pooling)
        return test
    if any(options[name] for name in ("columns", "label", "metrics", "subset", "limit", "split")):
        raise click.UsageError("columns, labels, metrics, subsets, limits and splits belong to data; add --data.")
    if not int8 or kind_of(dense, pooling=source.pooling) is QUESTION_ANSWERING:  # which takes two texts
        return None
    return Test("Python's documentation", None, [(text,) for text in python_documentation()[:1000]], None)


@main.command("compare")
@click.argument("results", type=click.Path(path_type=Path))
@click.option("--grid", "grid_file", type=click.Path(path_type=Path), help="TOML file that sets what options do not.")
@click.option("--model", "models", multiple=True, metavar="TASK=MODEL", help="A task and the model for it.")
@click.option("--method", "methods", multiple=True, help="A method, or a variant such as 'kprune refit=no'.")
@click.option("--reduction", "reductions", multiple=True, type=float)
@click.option("--seed", "seeds", multiple=True, type=int)
@click.option("--tokens", type=click.IntRange(min=1), help="Real tokens to sample.  [default: 25000]")
@click.option("--data", help="Folder that the data sets' folders are in.  [default: the hub]")
@click.option("--limit", type=click.IntRange(min=1), help="Validation rows, evenly spread.  [default: all]")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
def compare_command(results: Path, grid_file: Path | None, jobs: int, models: tuple[str, ...], **options: Any) -> None:
    """Run methods × tasks × reductions × seeds into RESULTS, a JSON line each; what is there is not run again."""
    chosen = read_grid(grid_file) if grid_file else {}
    chosen |= {name: value for name, value in options.items() if value not in (None, ())}
    if models:
        chosen["models"] = {task: model for task, _, model in (each.partition("=") for each in models)}
    if not all(chosen.get("models", {"": ""}).values()):
        raise click.UsageError("pass at least one --model TASK=MODEL.")
    grid = Grid(**chosen)
    total, left = len(grid.cells()), len(open_cells(grid, results))
    with counting_bar(total, total - left) as count:
        compare(grid, results, jobs=jobs, finished=count)
    failed = [line for line in read_runs(results) if "error" in line]
    out.print(f"{results}: {total} cells, {left} run now, {len(failed)} failed in all.")
    for line in failed:
        out.print(f"  {line['task']}, {line['method']}, {line['reduction']:g}: {line['error']}", highlight=False)


@main.command("plot")
@click.argument("results", type=click.Path(path_type=Path, exists=True))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--format", "ending", type=click.Choice(["png", "svg"]), default="png", show_default=True)
@json_option
def plot_command(results: Path, folder: Path, ending: str, as_json: bool) -> None:
    """Draw what RESULTS of a comparison hold into FOLDER: pictures, and tables in Markdown."""
    written = [str(path) for path in plot(results, folder, ending)]
    click.echo(json.dumps(written)) if as_json else out.print("\n".join(written))


@main.command("tasks")
@json_option
def tasks_command(as_json: bool) -> None:
    """List the benchmarks that models can be tested on."""
    if as_json:
        click.echo(json.dumps({name: asdict(task) for name, task in TASKS.items()}))
    else:
        out.print(tasks_table(TASKS.values()))


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
