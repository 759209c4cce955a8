"""int8 graphs: which matrices they have, and which of them cost most."""

import onnx
import pytest
import torch
from torch import nn
from uneven_graphs import BATCHES, uneven_model

from kprune.deploy.int8 import node_names, rank_by_error, weight_matrices
from kprune.deploy.onnx import graph_outputs, quantize, start, to_onnx

WORST = "bert.encoder.layer.1.attention.output.dense"


def spoiled(model):
    """The model with one weight in each row of a matrix that makes int8 useless there."""
    with torch.no_grad():
        model.get_submodule(WORST).weight[:, 0] = 1e3
        model.get_submodule(WORST).weight[:, 1:] *= 20
    return model


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """A classifier in float32 that int8 spoils."""
    model = spoiled(uneven_model("bert", "classification"))
    path = tmp_path_factory.mktemp("int8") / "model.onnx"
    to_onnx(model, BATCHES[0], path)
    return model, path


def test_every_weight_matrix_is_found_by_its_modules_name(graph):
    model, path = graph
    found = [matrix.name for matrix in weight_matrices(path)]
    modules = {name for name, each in model.named_modules() if isinstance(each, nn.Linear | nn.Embedding)}
    # Emptied sublayers have no product, and positions of a fixed table are folded into the graph.
    assert set(found) <= modules
    assert len(found) == len(set(found))
    assert {WORST, "classifier", "bert.embeddings.word_embeddings"} < set(found)
    assert graph_outputs(path) == ["logits"]


def test_excluded_matrices_stay_in_float32(graph, tmp_path):
    _, path = graph
    matrices = weight_matrices(path)
    quantize(path, tmp_path / "some.onnx", exclude=node_names(matrices[1:]))
    quantize(path, tmp_path / "none.onnx", exclude=node_names(matrices))
    sizes = [(tmp_path / name).stat().st_size for name in ("some.onnx", "none.onnx")]
    assert sizes[0] < sizes[1]
    operators = {node.op_type for node in onnx.load(tmp_path / "none.onnx").graph.node}
    assert not operators & {"MatMulInteger", "DequantizeLinear", "DynamicQuantizeLinear"}
    for batch in BATCHES[:2]:
        ours, theirs = start(path, 1)(batch)[0], start(tmp_path / "none.onnx", 1)(batch)[0]
        torch.testing.assert_close(ours, theirs)


def test_the_start_of_an_answer_counts_as_much_as_its_end(tmp_path):
    """No matrix changes the end of this model, and one of them ruins the start."""
    model = spoiled(uneven_model("bert", "question answering"))
    with torch.no_grad():
        model.qa_outputs.weight[1] = 0.0
    path = tmp_path / "model.onnx"
    to_onnx(model, BATCHES[0], path)
    assert graph_outputs(path) == ["start_logits", "end_logits"]
    assert rank_by_error(path, weight_matrices(path), BATCHES[:2])[0].name == WORST


def test_matrices_are_ranked_by_the_error_that_each_alone_causes(graph, tmp_path):
    _, path = graph
    matrices = weight_matrices(path)
    done: list[float] = []
    ranked = rank_by_error(path, matrices, BATCHES[:2], done.append)
    assert sorted(matrix.name for matrix in ranked) == sorted(matrix.name for matrix in matrices)
    assert ranked[0].name == WORST
    assert done[-1] == 1.0
    errors = []
    for matrix in (ranked[0], ranked[1], ranked[-1]):
        quantize(path, tmp_path / "one.onnx", exclude=node_names([each for each in matrices if each != matrix]))
        gaps = [start(tmp_path / "one.onnx", 1)(batch)[0] - start(path, 1)(batch)[0] for batch in BATCHES[:2]]
        errors.append(float(torch.cat(gaps).square().sum()))
    assert errors == sorted(errors, reverse=True)
