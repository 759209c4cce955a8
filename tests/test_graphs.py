"""Graphs give what torch gives: every family and kind of output, uneven layers, emptied ones."""

import json
import subprocess
import sys

import onnx
import onnxruntime
import pytest
import tiny
import torch

from kprune import graphs
from kprune.demo import embedded_model
from kprune.errors import KpruneError
from kprune.evaluate import evaluate
from kprune.export import export
from kprune.store import Source, save
from kprune.sublayer import find, shrink
from kprune.tasks import Test as Exam

BATCHES = tiny.batched(tiny.texts(64, longest=60))


def uneven(model):
    """A model with other numbers of units in each sublayer, an emptied attention and an emptied FFN among them."""
    for number, sublayer in enumerate(find(model)):
        keep = torch.arange(sublayer.units) % (number + 2) == 0
        shrink(sublayer, keep & (number not in (0, 3)))
    return model


def difference(model, run, names):
    """The largest difference to torch on 64 inputs of mixed length, real tokens only."""
    largest = 0.0
    for batch in BATCHES:
        with torch.no_grad():
            ours = model(**batch)
        for name, found in zip(names, run(batch), strict=True):
            gap = (ours[name] - found).abs()
            if gap.shape[:2] == batch["input_ids"].shape:
                gap = gap[batch["attention_mask"].bool()]
            largest = max(largest, float(gap.max()))
    return largest


# Each family and each kind at least once; benchmarks/export.py takes all pairs.
PAIRS = [(tiny.FAMILY_NAMES[n % len(tiny.FAMILY_NAMES)], kind) for n, kind in enumerate(tiny.KIND_NAMES)]


@pytest.mark.parametrize(("family", "kind"), PAIRS)
def test_graphs_agree_with_torch(family, kind, tmp_path):
    model = uneven(tiny.tiny_model(family, kind))
    names = graphs.output_names(model, BATCHES[0])
    graph = tmp_path / "model.onnx"
    graphs.write(model, BATCHES[0], graph)
    assert difference(model, graphs.start(graph, threads=1), names) < 1e-4
    other = tmp_path / "openvino_model.xml"
    graphs.to_openvino(graph, other)
    assert difference(model, graphs.start(other, threads=1), names) < 1e-4
    assert {file.name for file in tmp_path.iterdir()} == {graph.name, other.name, "openvino_model.bin"}


def test_exporting_leaves_the_model_as_it_was(tmp_path):
    model = tiny.tiny_model("bert").half().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    graphs.to_onnx(model, BATCHES[0], tmp_path / "model.onnx")
    assert model.dtype == torch.float16
    assert model.training
    assert model.config._attn_implementation != "eager"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_bias_is_added_last_so_that_no_slow_operator_is_made_of_it(tmp_path, monkeypatch):
    model = uneven(tiny.tiny_model("bert", "token classification"))
    names = graphs.output_names(model, BATCHES[0])
    paths = {}
    for order in ("plain", "bias last"):
        paths[order] = tmp_path / f"{order}.onnx"
        if order == "plain":
            monkeypatch.setattr(graphs, "add_bias_last", lambda graph: None)
        graphs.to_onnx(model, BATCHES[0], paths[order])
        monkeypatch.undo()
        assert difference(model, graphs.start(paths[order]), names) < 1e-4
    fused = {}
    for order, path in paths.items():
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / f"{order} optimised.onnx")
        options.log_severity_level = 3
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        operators = [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]
        fused[order] = operators.count("SkipLayerNormalization")
    assert fused["plain"] > 0
    assert fused["bias last"] == 0


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    """The embedded model with uneven layers, saved."""
    from kprune import prune
    from kprune.data import draw, python_documentation

    source = embedded_model()
    rows = [(text,) for text in python_documentation()[:200]]
    batches = draw(rows, source.load_tokenizer(), tokens=2000, max_length=64)
    folder = tmp_path_factory.mktemp("pruned") / "small"
    save(prune(source.load(), batches, reduction=0.8, refit=False), folder, source=source)
    return folder


@pytest.mark.real
def test_an_exported_folder_runs_by_its_own_readme(pruned, tmp_path):
    folder = tmp_path / "graph"
    exported = export(Source(pruned), folder)
    assert exported.difference < 1e-4
    assert exported.texts == 64
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert not list(folder.rglob("*.safetensors"))
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    code += "import sys\nassert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    code += "numpy.save('found.npy', run(feed)[0])\n"
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    import numpy

    source = Source(pruned)
    texts = ["A text.", "And another one, which is longer."]
    with torch.no_grad():
        wanted = source.load()(**source.load_tokenizer()(texts, padding=True, return_tensors="pt")).last_hidden_state
    assert numpy.abs(numpy.load(folder / "found.npy") - wanted.numpy()).max() < 1e-4


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A tiny encoder with a real tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = embedded_model().load_tokenizer()
    model = tiny.tiny_model("bert", "embedding", vocab_size=len(tokenizer), pad_token_id=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Source(folder)


@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_int8_is_a_quarter_of_the_size_and_near(small, to, tmp_path):
    exported = export(small, tmp_path / to, to=to, int8=True)
    model = small.load()
    assert exported.bytes[1] < 0.35 * exported.bytes[0]
    rows = [("one text",), ("another, longer text of more words",), ("Names are bound by assignment.",)] * 8
    result = evaluate(exported.model(model), small.load_tokenizer(), Exam("texts", None, rows, None), against=model)
    assert 95.0 < result.fidelity[0].value < 99.9999


def test_a_served_model_is_evaluated_like_any_other(small, tmp_path):
    model = small.load()
    exported = export(small, tmp_path / "graph")
    rows = [("one text",), ("another, longer text of more words",)] * 12
    result = evaluate(exported.model(model), small.load_tokenizer(), Exam("texts", None, rows, None), against=model)
    assert result.fidelity[0].value == pytest.approx(100.0, abs=1e-3)
    assert "forward" not in vars(model)  # the model itself still runs in torch


def test_a_graph_that_is_wrong_is_not_left_there(small, tmp_path, monkeypatch):
    right = graphs.add_bias_last

    def wrong(graph):
        right(graph)
        for node in graph.node:
            if node.op_type == "Gelu":
                node.op_type = "Relu"
                del node.attribute[:]

    monkeypatch.setattr(graphs, "add_bias_last", wrong)
    with pytest.raises(KpruneError, match=r"the onnx graph differs from torch by .* more than 0\.0001; nothing"):
        export(small, tmp_path / "graph")
    assert not list(tmp_path.iterdir())


def test_unknown_targets_and_missing_packages_are_named(tmp_path, monkeypatch):
    with pytest.raises(KpruneError, match="cannot export to 'tflite'; use one of onnx, openvino"):
        export(embedded_model(), tmp_path / "graph", to="tflite")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(KpruneError, match=r"onnx needs onnxscript: pip install 'kprune\[onnx\]'"):
        export(embedded_model(), tmp_path / "graph")


def test_a_graph_whose_residual_comes_late_is_left_alone():
    """The sum cannot be made in another order if the other term is not there yet."""
    make = onnx.helper.make_node
    value = lambda name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3])  # noqa: E731
    vector = onnx.helper.make_tensor("bias", onnx.TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    scale = onnx.helper.make_tensor("scale", onnx.TensorProto.FLOAT, [3], [1.0, 1.0, 1.0])
    nodes = [
        make("Add", ["x", "bias"], ["inner"]),
        make("Relu", ["x"], ["late"]),
        make("Add", ["inner", "late"], ["total"]),
        make("LayerNormalization", ["total", "scale"], ["y"]),
    ]
    graph = onnx.helper.make_graph(nodes, "g", [value("x")], [value("y")], [vector, scale])
    graphs.add_bias_last(graph)
    onnx.checker.check_model(onnx.helper.make_model(graph))


def test_a_readme_of_a_nested_encoder_names_its_folder(small, tmp_path):
    nested = tmp_path / "nested"
    (nested / "0_Transformer").mkdir(parents=True)
    for file in small.folder.iterdir():
        (nested / "0_Transformer" / file.name).write_bytes(file.read_bytes())
    modules = [{"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (nested / "modules.json").write_text(json.dumps(modules))
    export(Source(nested), tmp_path / "graph")
    card = (tmp_path / "graph/README.md").read_text()
    for name in ("0_Transformer/model.onnx", "0_Transformer/tokenizer.json"):
        assert f'"{name}"' in card
        assert (tmp_path / "graph" / name).is_file()


def test_a_model_without_a_tokenizer_is_not_exported(small, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((small.folder / name).read_bytes())
    with pytest.raises(KpruneError, match="has no tokenizer, so nothing can be checked on text"):
        export(Source(tmp_path), tmp_path.with_name("graph-of-it"))
