"""Exported folders: checked against torch, complete, and described by their README."""

import json
import subprocess
import sys

import huggingface_hub
import media_data
import numpy
import pytest
import tiny
import torch
import zoo
from task_data import word_tokenizer

from kprune import KpruneError
from kprune.checkpoints.source import Source
from kprune.data.tasks import Test as Exam
from kprune.deploy import onnx as onnx_target
from kprune.deploy.exporter import export
from kprune.deploy.graph_check import encode
from kprune.deploy.graphs import served_model
from kprune.deploy.hub_tokenizer import padded
from kprune.evaluation.evaluator import evaluate
from kprune.jobs.demo import embedded_model
from kprune.models.families import family_of
from kprune.models.passes import run
from kprune.models.pruned_shape import describe
from kprune.models.resize import keep_first
from kprune.models.sublayer import find


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A tiny encoder with a real tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = embedded_model().load_tokenizer()
    model = tiny.tiny_model("bert", "embedding", vocab_size=len(tokenizer), pad_token_id=0, num_hidden_layers=1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Source(folder)


@pytest.fixture(scope="module")
def nested(small, tmp_path_factory):
    """The same encoder in the subfolder of a sentence-transformers folder."""
    folder = tmp_path_factory.mktemp("models") / "nested"
    (folder / "0_Transformer").mkdir(parents=True)
    for file in small.folder.iterdir():
        (folder / "0_Transformer" / file.name).write_bytes(file.read_bytes())
    modules = [{"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    return Source(folder)


@pytest.fixture(scope="module")
def exported(nested, tmp_path_factory):
    """The nested encoder, exported to ONNX."""
    return export(nested, tmp_path_factory.mktemp("graphs") / "graph")


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    """The embedded model with uneven layers, saved with its record."""
    source = embedded_model()
    model = source.load()
    for number, sublayer in enumerate(find(model)):
        keep_first(sublayer, 0 if number in (2, 5) else sublayer.units // (number % 3 + 2))
    model.config.quantization_config = describe(model, [])
    folder = tmp_path_factory.mktemp("pruned") / "small"
    source.copy_to(folder)
    model.save_pretrained(folder)
    return folder


@pytest.mark.real
def test_an_exported_folder_runs_by_its_own_readme(pruned, tmp_path):
    folder = tmp_path / "graph"
    source = Source(pruned)
    exported = export(source, folder)
    assert exported.difference < 1e-4
    assert exported.texts == 64
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert not list(folder.rglob("*.safetensors"))
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    code += "import sys\nassert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    code += "numpy.save('found.npy', run(feed)[0])\n"
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    texts = ["A text.", "Another text, which is longer."]
    with torch.no_grad():
        wanted = source.load()(**source.load_tokenizer()(texts, padding=True, return_tensors="pt")).last_hidden_state
    assert numpy.abs(numpy.load(folder / "found.npy") - wanted.numpy()).max() < 1e-4


@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_int8_is_a_quarter_of_the_size_and_near(small, to, tmp_path):
    exported = export(small, tmp_path / to, to=to, int8=True)
    model = small.load()
    assert exported.bytes[1] < 0.35 * exported.bytes[0]
    rows = [("one text",), ("another, longer text of more words",), ("Names are bound by assignment.",)] * 8
    result = evaluate(exported.model(model), small.load_tokenizer(), Exam("texts", None, rows, None), against=model)
    assert 95.0 < result.fidelity[0].value < 99.9999


def test_a_served_model_is_evaluated_like_any_other(nested, exported):
    model = nested.load()
    rows = [("one text",), ("another, longer text of more words",)] * 12
    result = evaluate(exported.model(model), nested.load_tokenizer(), Exam("texts", None, rows, None), against=model)
    assert result.fidelity[0].value == pytest.approx(100.0, abs=1e-3)
    assert "forward" not in vars(model)  # the model itself still runs in torch


def test_a_loaded_model_is_not_loaded_again_nor_changed(small, tmp_path, monkeypatch):
    model = small.load().half()
    monkeypatch.setattr(Source, "load", lambda source: pytest.fail("loaded again"))
    exported = export(small, tmp_path / "graph", texts=["One text.", "Another one, which is longer."], model=model)
    assert exported.texts == 2
    assert exported.difference < 1e-4  # from the same weights in float32
    assert model.dtype == torch.float16


def test_a_graph_that_is_wrong_is_not_left_there(small, tmp_path, monkeypatch):
    right = onnx_target.add_bias_last

    def wrong(graph):
        right(graph)
        for node in graph.node:
            if node.op_type == "Gelu":
                node.op_type = "Relu"
                del node.attribute[:]

    monkeypatch.setattr(onnx_target, "add_bias_last", wrong)
    with pytest.raises(KpruneError, match=r"the onnx graph differs from torch by .* more than 0\.0001; nothing"):
        export(small, tmp_path / "graph")
    assert not list(tmp_path.iterdir())


def test_unknown_targets_and_missing_packages_are_named(tmp_path, monkeypatch):
    with pytest.raises(KpruneError, match="cannot export to 'tflite'; use one of onnx, openvino, gguf"):
        export(embedded_model(), tmp_path / "graph", to="tflite")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(KpruneError, match=r"onnx needs onnxscript: pip install 'kprune\[onnx\]'"):
        export(embedded_model(), tmp_path / "graph")


@pytest.mark.parametrize("place", ["", "inside", ".."])
def test_a_model_is_not_exported_over_itself(small, place):
    with pytest.raises(KpruneError, match="is, contains or is inside the folder of tiny; choose another folder"):
        export(small, small.folder / place)


def test_a_readme_of_a_nested_encoder_names_its_folder(exported):
    card = (exported.folder / "README.md").read_text()
    for name in ("0_Transformer/model.onnx", "0_Transformer/tokenizer.json"):
        assert f'"{name}"' in card
        assert (exported.folder / name).is_file()
    assert huggingface_hub.ModelCard(card).data.tags == ["kprune", "onnx"]


def test_a_model_without_a_tokenizer_is_not_exported(small, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((small.folder / name).read_bytes())
    with pytest.raises(KpruneError, match="has no tokenizer, so the model cannot read text; add its files"):
        export(Source(tmp_path), tmp_path.with_name("graph-of-it"))


def test_a_folder_may_be_a_text_and_nothing_else_is_exported(tmp_path):
    with pytest.raises(KpruneError, match="a model folder is needed, not a BertModel; pass one that was saved"):
        export(tiny.tiny_model("bert", "embedding"), tmp_path / "out")
    with pytest.raises(KpruneError, match=r"nowhere holds no model \(no config.json\)"):
        export(str(tmp_path / "nowhere"), str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("family", ["vit", pytest.param("whisper", marks=pytest.mark.slow)])
def test_a_model_without_text_is_exported_and_runs_by_its_own_readme(family, tmp_path):
    source = Source(media_data.write_model(tmp_path / "model", family))
    exported = export(source, tmp_path / "graph")
    assert exported.difference < 1e-4
    code = (tmp_path / "graph/README.md").read_text().split("```python\n")[1].split("```")[0]
    code += "import numpy\nnumpy.save('found.npy', run(feed)[0])\nnumpy.save('fed.npy', next(iter(feed.values())))\n"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "graph", capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    fed = torch.from_numpy(numpy.load(tmp_path / "graph/fed.npy"))
    with torch.no_grad():
        wanted = run(source.load(), {family_of(source.load_config()).inputs: fed})[0]
    assert numpy.abs(numpy.load(tmp_path / "graph/found.npy") - wanted.numpy()).max() < 1e-4


def test_an_evaluated_graph_of_an_encoder_is_the_graph():
    """Models with a decoder are called by their encoder: the graph must take its place, too."""
    model = zoo.build("whisper")
    inputs = zoo.batches(model)[0]
    served = served_model(model, lambda given: [torch.zeros(6, 12, 32)], ["last_hidden_state"])
    assert not run(served, inputs).last_hidden_state.any()
    assert run(model, inputs).last_hidden_state.any()


def test_a_tokenizer_that_reads_nothing_is_named():
    with pytest.raises(KpruneError, match="the tokenizer reads no token in '  '; use the tokenizer that"):
        encode(padded(word_tokenizer()), ["  "], 8)
