"""Graphs of all targets give what torch gives: every family and kind of output, uneven layers, emptied ones."""

import sys

import pytest
import tiny
from uneven_graphs import BATCHES, largest_difference, uneven_model

from kprune import KpruneError
from kprune.deploy.graphs import graph_files, output_names
from kprune.deploy.openvino import to_openvino
from kprune.deploy.targets import ONNX, OPENVINO, TARGETS, require_installed, start, target_named, target_of, write

OTHERS = [family for family in tiny.FAMILY_NAMES if family not in tiny.CORE_FAMILIES]
LIKE_BERT = {*tiny.ALIAS_CONFIGS, "esm", "megatron-bert"}
"""Families with the graph of a core family, but for names and positions."""
# Each kind and each graph at least once; the slow tests take each family, benchmarks/export.py all pairs.
PAIRS = [
    *((tiny.CORE_FAMILIES[n % len(tiny.CORE_FAMILIES)], kind) for n, kind in enumerate(tiny.KIND_NAMES)),
    *(
        pytest.param(family, tiny.KINDS_OF[family][-1], marks=[pytest.mark.slow] * (family in LIKE_BERT))
        for family in OTHERS
    ),
]


@pytest.mark.parametrize(("family", "kind"), PAIRS)
def test_graphs_agree_with_torch(family, kind, tmp_path):
    model = uneven_model(family, kind)
    names = output_names(model, BATCHES[0])
    graph = tmp_path / "model.onnx"
    write(model, BATCHES[0], graph)
    assert largest_difference(model, start(graph, threads=1), names) < 1e-4
    other = tmp_path / "openvino_model.xml"
    to_openvino(graph, other)
    assert largest_difference(model, start(other, threads=1), names) < 1e-4
    assert {file.name for file in tmp_path.iterdir()} == {graph.name, other.name, "openvino_model.bin"}
    assert graph_files(other) == [other, tmp_path / "openvino_model.bin"]


def test_a_target_is_found_by_its_name_and_its_file(tmp_path):
    for name, target in TARGETS.items():
        assert target_named(name) is target
        assert target_of(tmp_path / target.file) is target
    with pytest.raises(KpruneError, match="cannot export to 'tflite'; use one of onnx, openvino, gguf"):
        target_named("tflite")
    with pytest.raises(KpruneError, match=r"model\.gguf holds weights for llama\.cpp, not a graph; run it there"):
        start(tmp_path / "model.gguf")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(KpruneError, match=r"onnx needs onnxscript: pip install 'kprune\[onnx\]'"):
        require_installed(ONNX)


def test_nncf_is_needed_for_int8_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "nncf", None)
    require_installed(OPENVINO)
    with pytest.raises(KpruneError, match=r"openvino with int8 weights needs nncf: pip install 'kprune\[openvino\]'"):
        require_installed(OPENVINO, int8=True)
