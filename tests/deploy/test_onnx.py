"""The ONNX graph: an unchanged model, and sums in an order that ONNX Runtime runs fast."""

import copy

import onnx
import onnxruntime
import tiny
import torch
from uneven_graphs import BATCHES, largest_difference, uneven_model

from kprune.deploy import onnx as onnx_target
from kprune.deploy.graphs import output_names
from kprune.deploy.onnx import add_bias_last, start, to_onnx


def test_exporting_leaves_the_model_as_it_was(tmp_path):
    model = tiny.tiny_model("bert", num_hidden_layers=1).half().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    to_onnx(model, BATCHES[0], tmp_path / "model.onnx")
    assert model.dtype == torch.float16
    assert model.training
    assert model.config._attn_implementation != "eager"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def fused_norms(path) -> int:
    """Operators of the slow kind that ONNX Runtime makes of a graph."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path.with_suffix(".optimised.onnx"))
    options.log_severity_level = 3
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    operators = [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]
    return operators.count("SkipLayerNormalization")


def test_the_bias_is_added_last_so_that_no_slow_operator_is_made_of_it(tmp_path, monkeypatch):
    model = uneven_model("bert", "token classification")
    names = output_names(model, BATCHES[0])
    plain_graphs = []

    def keep_plain(graph):
        plain_graphs.append(copy.deepcopy(graph))
        add_bias_last(graph)

    monkeypatch.setattr(onnx_target, "add_bias_last", keep_plain)
    plain, bias_last = tmp_path / "plain.onnx", tmp_path / "bias-last.onnx"
    to_onnx(model, BATCHES[0], bias_last)
    exported = onnx.load(bias_last)
    exported.graph.CopyFrom(plain_graphs[0])
    onnx.save(exported, plain)
    for path in (plain, bias_last):
        assert largest_difference(model, start(path, 1), names) < 1e-4
    assert fused_norms(plain) > 0
    assert fused_norms(bias_last) == 0


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
    add_bias_last(graph)
    onnx.checker.check_model(onnx.helper.make_model(graph))
