"""The search for an int8 graph within a limit of loss."""

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from kprune.deploy.int8 import node_names, rank_by_error, weight_matrices
from kprune.deploy.onnx import quantize, start
from kprune.errors import BadOptions
from kprune.jobs.int8_search import Int8Search

SIZE, DEPTH = 16, 6
BATCHES = [{"x": torch.randn(32, SIZE, generator=torch.Generator().manual_seed(seed))} for seed in range(2)]


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """A graph of products; in each, some columns are larger than the others, so that matrices differ in their cost."""
    generator = torch.Generator().manual_seed(0)
    nodes, weights = [], []
    for number in range(DEPTH):
        values = torch.randn(SIZE, SIZE, generator=generator) / SIZE**0.5
        values[number] *= 1 + 3 * number
        weights.append(numpy_helper.from_array(values.numpy(), f"w{number}"))
        nodes.append(
            helper.make_node("MatMul", [f"h{number}" if number else "x", f"w{number}"], [f"p{number}"], f"m{number}")
        )
        nodes.append(helper.make_node("Tanh", [f"p{number}"], [f"h{number + 1}"], f"t{number}"))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", SIZE]) for name in ("x", f"h{DEPTH}")]
    model = helper.make_model(
        helper.make_graph(nodes, "products", ends[:1], ends[1:], weights), opset_imports=[helper.make_opsetid("", 18)]
    )
    model.ir_version = 9
    path = tmp_path_factory.mktemp("int8") / "model.onnx"
    onnx.save(model, path)
    return path


def loss_against(graph):
    """Points lost: the relative difference of logits, in percent."""
    expected = [start(graph, 1)(batch)[0] for batch in BATCHES]

    def loss(path) -> float:
        gaps = [start(path, 1)(batch)[0] - ours for batch, ours in zip(BATCHES, expected, strict=True)]
        return 100.0 * float(torch.cat(gaps).norm() / torch.cat(expected).norm())

    return loss


def test_as_few_matrices_stay_in_float32_as_the_limit_allows(graph, tmp_path):
    loss, matrices = loss_against(graph), weight_matrices(graph)
    ranked = rank_by_error(graph, matrices, BATCHES[:1])
    losses = []  # by the number of matrices in float32
    for number in range(len(ranked)):
        quantize(graph, tmp_path / "some.onnx", exclude=node_names(ranked[:number]))
        losses.append(loss(tmp_path / "some.onnx"))
    for limit in (1.01 * losses[0], 0.5 * losses[0], 0.2 * losses[0], 1e-9):
        search = Int8Search(limit, loss, BATCHES[:1])
        search(graph, tmp_path / "found.onnx")
        kept = len(search.choice.in_float32)
        assert search.choice.in_float32 == tuple(matrix.name for matrix in ranked[:kept])
        assert search.choice.before == pytest.approx(losses[0])
        if kept < len(ranked):
            assert loss(tmp_path / "found.onnx") == pytest.approx(search.choice.after)
            assert search.choice.after <= limit
        assert kept == 0 or losses[kept - 1] > limit


def test_the_choice_is_one_sentence(graph, tmp_path):
    loss = loss_against(graph)
    sentences = []
    for limit in (100.0, loss_limit(graph, loss, tmp_path), 1e-9):
        search = Int8Search(limit, loss, BATCHES[:1])
        search(graph, tmp_path / "found.onnx")
        sentences.append(search.describe())
    assert sentences[0].endswith("within the limit of 100: none stays in float32.")
    assert "of them in float32 (" in sentences[1]
    assert "all stay in float32, and the graph is not quantised. Allow a larger drop." in sentences[2]
    assert all(
        sentence.startswith(f"With all {len(weight_matrices(graph))} matrices in int8") for sentence in sentences
    )


def loss_limit(graph, loss, folder) -> float:
    """Half of the loss with all matrices in int8."""
    quantize(graph, folder / "all.onnx")
    return 0.5 * loss(folder / "all.onnx")


def test_a_limit_is_above_zero():
    with pytest.raises(BadOptions, match="--int8-max-drop is 0, but must be above 0"):
        Int8Search(0.0, lambda path: 0.0, [])
