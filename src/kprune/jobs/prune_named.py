"""`kprune.prune`: a model and its batches, or the name of a model and text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from kprune.checkpoints.processors import medium_of
from kprune.checkpoints.source import Source, fetch
from kprune.config import DEFAULT_TOKENS, PruneConfig, RunConfig, combine_options
from kprune.data.items import read_media
from kprune.data.readers import is_table_file
from kprune.data.tasks import Test, read_test
from kprune.errors import BadOptions
from kprune.jobs.data_options import DataOptions
from kprune.jobs.preparation import prepare
from kprune.pruning.progress import Progress
from kprune.pruning.pruner import prune as prune_batches
from kprune.pruning.registry import wants_labels
from kprune.pruning.result import Pruned
from kprune.runtime.notebook import fraction_bar, is_notebook

Report = Callable[[Progress], None]


def prune(
    model: PreTrainedModel | Source | str | Path,
    data: Any,
    config: PruneConfig | None = None,
    *,
    run: RunConfig | None = None,
    columns: Sequence[str] = (),
    label: str | None = None,
    tokens: int | None = None,
    max_length: int | None = None,
    progress: bool | Report | None = None,
    **options: Any,
) -> Pruned:
    """A smaller copy of a model, without `reduction` of its layers' FLOPs, its remaining weights refitted.

    `model` is a folder or a hub name, and `data` is text: a list of texts or pairs, a Dataset, a DataFrame or one of
    its columns, or the path of a file. The folder's tokenizer, pooling, default prompt and length are used, as in
    `kprune prune`. Of data with columns, `columns` names one or two, and `label` the one with labels, which few
    criteria read. `tokens` is the size of the sample (100,000), `max_length` the length at which texts are cut.

    Or `model` is a transformers model, and `data` batches: the output of a tokenizer or a processor. The model itself
    does not change.

    Options are fields of `PruneConfig` and `RunConfig`, as objects or as keywords: `prune("folder", texts,
    reduction=0.6, checkpoint="finished")`. A field that is None takes the default of its criterion. A sample with fewer
    tokens than the widest sublayer has features needs a `ridge` of 1e-4 or more. `budget` may be a name or a `Budget`,
    such as `Latency.budget`. `offload` is "host" (the memory of a GPU's host) or a folder on disk. `checkpoint` names a
    folder for finished sublayers: a killed run continues from there, with the same result; delete it afterwards.

    `progress` is a callback, or True for a bar and False for none. By default there is a bar if `model` is a name and
    the code runs in a notebook.
    """
    if not isinstance(model, str | Path | Source):
        given = {"columns": columns, "label": label, "tokens": tokens, "max_length": max_length}
        unused = [name for name, value in given.items() if value not in ((), None)]
        if unused:
            raise BadOptions(
                f"{unused[0]} belongs to text, and this model is an object with batches; pass the model's folder or "
                "name with text, or make the batches with kprune.draw."
            )
        with _reporting(progress, is_default=False) as report:
            reported = {} if report is None else {"progress": report}
            return prune_batches(model, data, config, run=run, **options, **reported)
    source = model if isinstance(model, Source) else Source(fetch(str(model)), name=str(model))
    config, run = combine_options(config or PruneConfig(), run, {"pooling": source.pooling, **options})
    sample = _sample(data, source, columns, label, config.seed)
    with _reporting(progress, is_default=is_notebook()) as report:
        prepared = prepare(
            source,
            sample,
            None,
            config,
            tokens=DEFAULT_TOKENS if tokens is None else tokens,
            max_length=max_length,
            device=run.device,
            with_labels=wants_labels(config),
        )
        pruned = prepared.pruner(config, run).prune(config.reduction, progress=report)
    return replace(pruned, source=source)


def _sample(data: Any, source: Source, columns: Sequence[str], label: str | None, seed: int) -> Test:
    """The rows of the data; a path or a name is read as the command line reads it."""
    named = (columns,) if isinstance(columns, str) else tuple(columns)
    medium = medium_of(source)
    if isinstance(data, str | Path):
        place: dict[str, Any] = {"table": (str(data),)}
        if Path(data).is_dir() and medium is not None:
            place = {medium.name: data}
        elif Path(data).is_file() and not is_table_file(data):
            place = {"text": data}
        found, _ = DataOptions(columns=named, label=label, medium=medium, **place).sample_and_test(
            wants_test=False, seed=seed
        )
        return found
    if medium is not None:
        return read_media(data, medium, named[0] if named else None, label)
    return read_test(data, named, label)


@contextmanager
def _reporting(progress: bool | Report | None, *, is_default: bool) -> Iterator[Report | None]:
    """Yield a callback for progress, which draws a bar if one is wanted; None: `RunConfig.progress` is called."""
    if callable(progress):
        yield progress
    elif progress or (progress is None and is_default):
        with fraction_bar("pruning") as advance:
            yield lambda done: advance(done.fraction, done.sublayer)
    else:
        yield None
