"""Export a model folder to another runtime, and test what the graph answers."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel

from kprune.checkpoints.processors import load_reader
from kprune.checkpoints.source import Source
from kprune.data.calibration import python_documentation
from kprune.data.tasks import Test
from kprune.deploy.exported import Exported
from kprune.deploy.exporter import export
from kprune.errors import BadOptions
from kprune.evaluation.evaluator import Evaluation, check_compatible
from kprune.jobs.check_model import load_checked
from kprune.jobs.data_options import DataOptions
from kprune.jobs.preparation import Prepared, as_read_by, length_limit
from kprune.jobs.prune_checkpoint import ShowProgress, evaluate_models, no_progress
from kprune.models.families import family_of
from kprune.models.outputs import QUESTION_ANSWERING, kind_of

STOCK_TEXTS = 1000


def export_checkpoint(
    source: Source,
    folder: Path,
    data: DataOptions,
    *,
    to: str,
    int8: bool,
    layout: str = "plain",
    overwrite: bool = False,
    show_progress: ShowProgress = no_progress,
) -> tuple[Exported, Evaluation | None]:
    """Write the graphs, check them against torch, and evaluate one against the model if there is a test.

    It is the graph with int8 weights if there is one.
    """
    int8 = int8 or layout == "hub"
    _require_consistent(data)
    named = data.test(data.split) if _names_data(data) else None  # wrong data are noticed before weights are loaded
    model, _ = load_checked(source)
    reads_text = family_of(model.config).inputs == "input_ids"
    test = named or (_stock_test(model, source) if int8 and reads_text else None)
    if test is not None:
        test = as_read_by(source, test, kind_of(model, pooling=source.pooling).name)
        check_compatible(model, load_reader(source), test, pooling=source.pooling)
    exported = export(
        source, folder, to=to, int8=int8 and layout == "plain", layout=layout, overwrite=overwrite, model=model
    )
    if test is None:
        return exported, None
    limit = length_limit(source, data.max_length)
    prepared = Prepared(source, model, load_reader(source), [], test, limit)
    graph = exported.model(model, exported.quantized)
    return exported, evaluate_models(graph, prepared, test, against=model, show_progress=show_progress)


def _names_data(data: DataOptions) -> bool:
    return bool(data.text or data.task or data.table)


def _require_consistent(data: DataOptions) -> None:
    if _names_data(data):
        data.require_one_source()
    elif any((data.columns, data.label, data.metrics, data.subset, data.limit, data.split)):
        raise BadOptions("columns, labels, metrics, subsets, limits and splits belong to data; add --data.")


def _stock_test(model: PreTrainedModel, source: Source) -> Test | None:
    """Python's documentation, for int8, which changes outputs; none for a model that reads pairs of texts."""
    if kind_of(model, pooling=source.pooling) is QUESTION_ANSWERING:
        return None
    rows = [(text,) for text in python_documentation()[:STOCK_TEXTS]]
    return Test("Python's documentation", None, rows, None)
