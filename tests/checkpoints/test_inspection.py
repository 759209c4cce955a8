"""`inspect` reads shape and size from the config alone."""

import shutil

import pytest
import tiny
from uneven_model import uneven_result

import kprune
from kprune.checkpoints.inspection import inspect
from kprune.checkpoints.writer import save
from kprune.models.sublayer import find
from kprune.pruning.budgets import total_flops


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(uneven_result(), tmp_path_factory.mktemp("models") / "small")


def test_a_pruned_folder_has_the_models_shape_and_size(folder):
    result, found = uneven_result(), inspect(folder)
    units = [sublayer.units for sublayer in find(result.model)]
    assert (found.shape.heads, found.shape.neurons) == (units[::2], units[1::2])
    assert (found.shape.dense_heads, found.shape.dense_neurons) == (4, 48)
    assert found.parameters == result.parameters
    assert found.length == result.tokens / result.examples
    assert found.flops == result.flops
    assert found.bytes_on_disk == sum(file.stat().st_size for file in folder.iterdir())


def test_flops_are_counted_for_the_given_length(folder):
    assert inspect(folder, 50.0).flops[1] == total_flops(find(uneven_result().model), 50.0)


def test_a_dense_folder_has_no_history(tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path)
    found = inspect(tmp_path)
    assert found.history == []
    assert found.length == 128.0
    assert found.flops[0] == found.flops[1]


def test_a_graph_is_not_inspected(folder, tmp_path):
    shutil.copy(folder / "config.json", tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(kprune.KpruneError, match="holds a graph, not a checkpoint; inspect the folder"):
        inspect(tmp_path)
