"""Export a model folder to another runtime, and test what the graph answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from kprune.checkpoints.processors import load_reader
from kprune.checkpoints.source import Source
from kprune.data.calibration import draw, longest_input, python_documentation
from kprune.data.processing import MediaReader
from kprune.data.tasks import Test
from kprune.deploy.exported import Exported
from kprune.deploy.exporter import export
from kprune.deploy.graphs import served_model
from kprune.deploy.onnx import graph_outputs
from kprune.deploy.targets import GGUF, start
from kprune.errors import BadOptions
from kprune.evaluation.evaluator import Evaluation, check_compatible
from kprune.jobs.check_model import load_checked
from kprune.jobs.data_options import DataOptions
from kprune.jobs.int8_search import Int8Choice, Int8Search
from kprune.jobs.preparation import Prepared, as_read_by, length_limit, rows_read
from kprune.jobs.prune_checkpoint import Advance, ShowProgress, evaluate_models, no_progress
from kprune.models.families import family_of
from kprune.models.outputs import QUESTION_ANSWERING, kind_of
from kprune.pruning.progress import Progress

STOCK_TEXTS = 1000
RANKED_TOKENS = 2000
"""Tokens on which matrices are ranked by the error that their int8 weights cause."""


@dataclass(frozen=True)
class ExportResult:
    """An exported folder, and what its graph loses."""

    exported: Exported
    evaluation: Evaluation | None
    """The graph's evaluation against the model, if there is a test."""
    int8: Int8Choice | None
    """Which matrices are int8, if a limit was given."""

    def as_json(self) -> dict[str, Any]:
        """The export's fields, its evaluation and its choice."""
        return {
            **asdict(self.exported),
            "evaluation": self.evaluation.as_json() if self.evaluation else None,
            "int8_choice": asdict(self.int8) if self.int8 else None,
        }


def export_checkpoint(
    source: Source,
    folder: Path,
    data: DataOptions,
    *,
    to: str,
    int8: bool,
    dtype: str | None = None,
    layout: str = "plain",
    int8_max_drop: float | None = None,
    overwrite: bool = False,
    show_progress: ShowProgress = no_progress,
) -> ExportResult:
    """Write the graphs, check them against torch, and evaluate one against the model if there is a test.

    It is the graph with int8 weights if there is one. With `int8_max_drop`, matrices stay in float32 there until it
    loses at most so many points on the test. `dtype` is the type of the weights in a GGUF file.
    """
    is_hub = layout == "hub"
    int8 = int8 or is_hub
    if int8_max_drop is not None and not (int8 and to == "onnx"):
        raise BadOptions("--int8-max-drop is for int8 graphs of ONNX Runtime; add --int8, or use --layout hub.")
    _require_consistent(data)
    if to == GGUF.name and _names_data(data):
        raise BadOptions("a GGUF file is compared with torch, not evaluated; leave --task, --data and --text out.")
    named = data.test(data.split) if _names_data(data) else None  # wrong data are noticed before weights are loaded
    model, _ = load_checked(source)
    reads_text = family_of(model.config).inputs == "input_ids"
    test = named or (_stock_test(model, source) if int8 and reads_text else None)
    if test is not None:
        test = as_read_by(source, test, kind_of(model, pooling=source.pooling).name)
        check_compatible(model, load_reader(source), test, pooling=source.pooling)
    prepared = None
    if test is not None:
        prepared = Prepared(source, model, load_reader(source), [], test, length_limit(source, data.max_length))
    with show_progress() as advance:
        search = None if int8_max_drop is None else _search(prepared, int8_max_drop, advance)
        exported = export(
            source,
            folder,
            to=to,
            int8=int8 and not is_hub,
            dtype=dtype,
            layout=layout,
            overwrite=overwrite,
            model=model,
            quantizer=search,
        )
    choice = None if search is None else search.choice
    if prepared is None or test is None:
        return ExportResult(exported, None, choice)
    graph = exported.model(model, exported.quantized)
    recalled = prepared.cached_predictions
    evaluation = evaluate_models(graph, prepared, test, against=model, recalled=recalled, show_progress=show_progress)
    return ExportResult(exported, evaluation, choice)


def _search(prepared: Prepared | None, limit: float, advance: Advance) -> Int8Search:
    """The search for an int8 graph that loses at most `limit` points on the test."""
    if prepared is None or prepared.test is None or isinstance(prepared.tokenizer, MediaReader):
        raise BadOptions("--int8-max-drop measures the loss on text; add --task, --data or --text.")
    test, model = prepared.test, prepared.model
    rows = rows_read(test, kind_of(model, pooling=prepared.source.pooling).name)
    longest = min(prepared.max_length, longest_input(prepared.tokenizer, model.config))
    batches = draw(rows, prepared.tokenizer, tokens=RANKED_TOKENS, max_length=longest, is_most=True)

    def loss(path: Path) -> float:
        graph = served_model(model, start(path), graph_outputs(path))
        return evaluate_models(graph, prepared, test, against=model, recalled=prepared.cached_predictions).drop.value

    return Int8Search(limit, loss, batches, lambda done, phase: advance(Progress(done, phase, None)))


def _names_data(data: DataOptions) -> bool:
    return bool(data.text or data.task or data.table)


def _require_consistent(data: DataOptions) -> None:
    if _names_data(data):
        data.require_one_source()
    elif any((data.columns, data.label, data.metrics, data.subset, data.limit, data.split)):
        raise BadOptions("columns, labels, metrics, subsets, limits and splits belong to data; add --data.")


def _stock_test(model: PreTrainedModel, source: Source) -> Test | None:
    """Python's documentation, for int8, which changes outputs; none for a model that reads pairs of texts."""
    if source.sentence_class == "CrossEncoder" or kind_of(model, pooling=source.pooling) is QUESTION_ANSWERING:
        return None
    rows = [(text,) for text in python_documentation()[:STOCK_TEXTS]]
    return Test("Python's documentation", None, rows, None)
