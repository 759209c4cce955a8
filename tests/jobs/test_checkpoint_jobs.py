"""Jobs on checkpoints other than pruning: evaluate and export."""

import json

import pytest
import torch
from command_line import write_checkpoint
from task_data import load_tokenizer

from kprune.checkpoints.source import Source
from kprune.errors import BadOptions, KpruneError
from kprune.jobs.data_options import DataOptions
from kprune.jobs.evaluate_checkpoint import evaluate_checkpoint, require_same_inputs
from kprune.jobs.export_checkpoint import export_checkpoint

pytest_plugins = ["command_fixtures"]


@pytest.fixture
def loads(monkeypatch) -> list[str]:
    """Names of the models whose weights are loaded."""
    names: list[str] = []
    load = Source.load

    def count(source):
        names.append(source.name)
        return load(source)

    monkeypatch.setattr(Source, "load", count)
    return names


def test_a_checkpoint_equals_itself(checkpoint, small, table, loads):
    data = DataOptions(table=str(table), columns=("text",), label="verdict", limit=30)
    same = evaluate_checkpoint(Source(checkpoint), data.test(None), against=Source(checkpoint), max_length=40)
    assert (same.differences[0].value, same.fidelity[0].value, same.examples) == (0.0, 100.0, 30)
    alone = evaluate_checkpoint(Source(small), data.test(None), max_length=40)
    assert (len(alone.figures), alone.differences, alone.fidelity) == (1, (), ())
    assert loads == ["tiny", "tiny", "small"]


def test_models_that_read_other_tokens_are_refused_before_their_weights_are_loaded(checkpoint, text, loads, tmp_path):
    class Other(Source):
        def load_tokenizer(self):
            return type("Tokenizer", (), {"get_vocab": lambda self: {"word": 0}})()

    with pytest.raises(KpruneError, match=r"tiny and other have different tokenizers \(\d+ and 1 tokens\)"):
        evaluate_checkpoint(
            Source(checkpoint), DataOptions(text=text).test(None), against=Other(checkpoint, name="other")
        )
    assert loads == []
    require_same_inputs(Source(checkpoint), Source(checkpoint))
    assert len(load_tokenizer().get_vocab()) > 1


def test_export_loads_the_model_once(checkpoint, table, loads, tmp_path):
    data = DataOptions(table=str(table), columns=("text",), label="verdict", limit=20)
    result = export_checkpoint(Source(checkpoint), tmp_path / "graph", data, to="onnx", int8=False)
    exported, evaluation = result.exported, result.evaluation
    assert loads == ["tiny"]
    assert exported.difference < 1e-4
    assert evaluation.examples == 20
    assert evaluation.fidelity[0].value == 100.0


def test_export_without_data_is_not_evaluated_unless_it_changes_the_outputs(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("kprune.jobs.export_checkpoint.STOCK_TEXTS", 30)
    result = export_checkpoint(Source(checkpoint), tmp_path / "graph", DataOptions(), to="onnx", int8=True)
    evaluation = result.evaluation
    assert (evaluation.test, evaluation.examples) == ("Python's documentation", 30)


def test_a_rerankers_int8_graph_is_measured_on_pairs_only(tmp_path, monkeypatch, caplog):
    """Python's documentation has no pairs; a table of rankings has, for the order of the matrices too."""
    folder = write_checkpoint(tmp_path / "reranker", "regression", num_hidden_layers=1)
    config = json.loads((folder / "config.json").read_text())
    settings = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (folder / "config.json").write_text(json.dumps({**config, "sentence_transformers": settings}))
    searches = []

    class NotWritten:
        quantized = None

        def __init__(self, *_, quantizer, **__):
            searches.append(quantizer)
            if quantizer is not None:
                quantizer.choice = None

        def model(self, model, graph):
            return model

    monkeypatch.setattr("kprune.jobs.export_checkpoint.export", NotWritten)
    monkeypatch.setattr("kprune.jobs.export_checkpoint.evaluate_models", lambda *_, **__: None)
    export_checkpoint(Source(folder), tmp_path / "graph", DataOptions(), to="onnx", int8=True)
    assert "single texts" not in caplog.text
    row = {"query": "Which?", "passages": ["One of the names.", "A number."], "relevance": [1, 0]}
    (tmp_path / "queries.jsonl").write_text(json.dumps(row))
    data = DataOptions(table=str(tmp_path / "queries.jsonl"))
    export_checkpoint(Source(folder), tmp_path / "graph", data, to="onnx", int8=True, int8_max_drop=1.0)
    segments = torch.cat([batch["token_type_ids"].amax(1) for batch in searches[-1].batches])
    assert segments.tolist() == [1, 1]


def test_options_about_data_need_data(checkpoint, tmp_path, loads):
    for options in ({"columns": ("a",)}, {"label": "y"}, {"limit": 5}, {"split": "x"}, {"subset": "x"}):
        with pytest.raises(BadOptions, match="belong to data; add --data"):
            export_checkpoint(Source(checkpoint), tmp_path / "graph", DataOptions(**options), to="onnx", int8=False)
    assert loads == []


def test_data_that_do_not_fit_are_refused_before_the_export(checkpoint, table, tmp_path, monkeypatch):
    monkeypatch.setattr("kprune.jobs.export_checkpoint.export", lambda *_, **__: pytest.fail("was exported"))
    data = DataOptions(table=str(table), columns=("text",), label="text")
    with pytest.raises(KpruneError, match=r"has the label .*; use bad, fair, good, or a class number"):
        export_checkpoint(Source(checkpoint), tmp_path / "graph", data, to="onnx", int8=False)


def test_data_that_cannot_be_read_are_refused_before_weights_are_loaded(checkpoint, tmp_path, loads):
    with pytest.raises(KpruneError, match=r"cannot read .*nope\.txt"):
        export_checkpoint(
            Source(checkpoint), tmp_path / "graph", DataOptions(text=tmp_path / "nope.txt"), to="onnx", int8=False
        )
    assert loads == []
