"""What the options of several commands mean: texts, labels, tests, lengths and devices."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch
from transformers import PreTrainedModel

from kprune import data
from kprune.errors import KpruneError
from kprune.labels import training_labels
from kprune.methods import METHODS
from kprune.metrics import METRICS
from kprune.outputs import kind_of
from kprune.store import Source
from kprune.tasks import EMBEDDING, Test, hold_out, load_task, read_test, task_named, task_table, text_test

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def data_options(command: Any) -> Any:
    """What texts and labels are read from, for commands that read some."""
    for option in reversed(
        (
            click.option("--text", type=click.Path(path_type=Path), help="Text file, an example per line."),
            click.option("--task", help="One of `kprune tasks`, from the hub, or from the folder --data."),
            click.option(
                "--data",
                "table",
                help="JSONL, CSV, TSV or Parquet file, or a Hugging Face data set (name or folder); "
                "with --task, the folder that the data sets' folders are in.",
            ),
            click.option(
                "--column", "--text-column", "columns", multiple=True, help="Column with the text; twice for pairs."
            ),
            click.option("--label-column", "label", help="Column with the right answers."),
            click.option("--metric", "metrics", multiple=True, help=f"One of {', '.join(METRICS)}."),
            click.option("--subset", help="Configuration of the data set."),
            click.option(
                "--max-length", type=click.IntRange(min=8), help="Truncate inputs here.  [default: the model's limit]"
            ),
            click.option("--limit", type=click.IntRange(min=1), help="Test on the first rows only."),
            click.option("--device", help="cpu, cuda, ...  [default: cuda where there is one]"),
            json_option,
        )
    ):
        command = option(command)
    return command


def require_one_source(options: dict[str, Any]) -> None:
    """Refuse options that name no data, or two, or what a task has of its own."""
    chosen = [name for name in ("text", "task", "table") if options[name] is not None]
    if chosen not in (["text"], ["task"], ["table"], ["task", "table"]):
        raise click.UsageError("pass the data with one of --text, --data and --task (and --data for its folder).")
    if options["task"] and (options["columns"] or options["label"] or options["metrics"] or options["subset"]):
        raise click.UsageError("a --task has its own columns, labels, metrics and subset; leave those options out.")
    if options["text"] is not None and (options["columns"] or options["label"] or options["metrics"]):
        raise click.UsageError("a --text has no columns and no labels; use --data for a table.")


def sample_and_test(options: dict[str, Any]) -> tuple[Test, Test | None]:
    """What to sample from, and the test that was asked for, which shares no row with it."""
    require_one_source(options)
    wants_test = options["is_tested"] or options["max_drop"] is not None
    if not wants_test and (options["validation"] or options["metrics"] or options["limit"]):
        raise click.UsageError("--validation, --metric and --limit belong to a test; add --evaluate.")
    if options["task"]:
        return _of_task(options, wants_test)
    split = options["split"] or (None if _is_file(options) else "train")
    whole = _table(options, split)
    if not wants_test:
        return whole, None
    if options["validation"] is None:
        return hold_out(whole, seed=options["seed"], most=options["limit"] or 2000)
    if options["validation"] == split:
        raise click.UsageError(f"{split!r} is sampled, and cannot be the test too; name another split.")
    return whole, test_of(options, options["validation"])


def _of_task(options: dict[str, Any], wants_test: bool) -> tuple[Test, Test | None]:
    task = task_named(options["task"])
    sampled, tested = options["split"] or task.train, options["validation"] or task.validation
    if wants_test and sampled == tested:
        raise click.UsageError(f"{sampled!r} is sampled, and cannot be the test too; name another split.")
    table = task_table(task, sampled, options["table"])
    sample = replace(read_test(table, task.texts, task.label, name=task.name), labels=task.labels)
    return sample, test_of(options, tested) if wants_test else None


def test_of(options: dict[str, Any], split: str | None) -> Test:
    """The test that the options name: a task's, a file's, or a split's."""
    if options["task"]:
        return load_task(options["task"], data=options["table"], split=split, limit=options["limit"])
    if split is not None and Path(split).is_file():
        is_table = Path(split).suffix in data.READERS
        options = {**options, "table": split if is_table else None, "text": None if is_table else Path(split)}
        split = None
    return _table(options, split or (None if _is_file(options) else "validation"), limit=options["limit"])


def _is_file(options: dict[str, Any]) -> bool:
    return options["table"] is None or Path(options["table"]).suffix in data.READERS


def _table(options: dict[str, Any], split: str | None, *, limit: int | None = None) -> Test:
    """The rows of --text or --data, with their labels where a column is named."""
    if split is not None and _is_file(options):
        name = options["text"] or options["table"]
        raise KpruneError(f"{name} is a file and has no split {split!r}, nor is there a file of that name.")
    if options["text"] is not None:
        return text_test(options["text"], limit=limit)
    return read_test(
        data.read_table(options["table"], subset=options["subset"], split=split or "train"),
        options["columns"],
        options["label"],
        metrics=options["metrics"],
        name=Path(options["table"]).name,
        limit=limit,
    )


def sample_of(
    source: Source, model: PreTrainedModel, sample: Test, options: dict[str, Any]
) -> list[dict[str, torch.Tensor]]:
    """Tokenised batches of the rows to sample, with labels where the method wants them."""
    tokenizer = source.load_tokenizer()
    kind = kind_of(model, pooling=source.pooling)
    wants_labels = METHODS[options["method"]].wants_labels or options["criterion"] == "gradient"
    rows = sample.rows
    if kind.name == EMBEDDING:  # embeds one text at a time
        rows = [(text,) for row in rows for text in row]
    return data.draw(
        rows,
        tokenizer,
        tokens=options["tokens"],
        max_length=length_limit(source, options, data.longest_input(tokenizer, model.config)),
        seed=options["seed"],
        masked=kind.is_vocabulary,
        labels=training_labels(sample, kind.name, model.config) if wants_labels else None,
    )


def require_one_vocabulary(source: Source, other: Source) -> None:
    """Refuse to compare models that do not read the same tokens."""
    ours, theirs = source.load_tokenizer().get_vocab(), other.load_tokenizer().get_vocab()
    if ours != theirs:
        raise KpruneError(
            f"{source.name} and {other.name} have different tokenizers ({len(ours)} and {len(theirs)} tokens), so one "
            "text is not the same to both; compare models that share one."
        )


def length_limit(source: Source, options: dict[str, Any], *others: int) -> int:
    """The length at which inputs are truncated: the least that anyone asks for."""
    limits: list[int | None] = [source.max_length, options["max_length"], *others, 10**9]
    return min(limit for limit in limits if limit is not None)


def parse_shape(text: str) -> tuple[int, int]:
    """Batch and length, from BATCHxLENGTH."""
    batch, _, length = text.lower().replace("×", "x").partition("x")
    if not (batch.isdecimal() and length.isdecimal() and int(batch) and int(length)):
        raise click.UsageError(f"the shape {text!r} is not BATCHxLENGTH; 32x128 is 32 texts of 128 tokens.")
    return int(batch), int(length)


def require_picture(path: Path) -> None:
    """Refuse, before any work is done, a picture that could not be drawn."""
    if path.suffix not in (".png", ".svg") or not path.resolve().parent.is_dir():
        raise click.UsageError(f"{path} cannot be drawn; name a .png or .svg file in a folder that exists.")
    if importlib.util.find_spec("matplotlib") is None:
        raise KpruneError("a picture needs the extra: pip install 'kprune[plots]'.")


def short_names(names: Sequence[str]) -> list[str]:
    """The last parts of paths, longer where two would be the same."""
    for parts in range(1, 10):
        short = ["/".join(Path(name).parts[-parts:]) for name in names]
        if len(set(short)) == len(short):
            return short
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]
