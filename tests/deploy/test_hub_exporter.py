"""Folders in the hub layout: graphs give what torch gives, and every reader finds its files."""

import json
import re

import numpy
import pytest
import torch
from hub_sources import SOURCES, TEXTS
from server_rules import broken_rules
from tokenizers import Tokenizer

import kprune
from kprune import KpruneError
from kprune.checkpoints.atomic import require_writable
from kprune.checkpoints.source import Source
from kprune.deploy.hub_exporter import INT8_FILE, ONNX_FILE, OPENVINO_FILE
from kprune.deploy.targets import start
from kprune.models.outputs import pool

POOLINGS = {"embedder": "cls", "decoder": "lasttoken"}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name == "tagger")) for name in SOURCES],
)
def case(request, tmp_path_factory):
    """A kind's name, its source, and the folder that it was exported to."""
    root = tmp_path_factory.mktemp(request.param)
    source = SOURCES[request.param](root / "source")
    return request.param, source, kprune.export(source, root / "served", layout="hub", texts=TEXTS)


def inputs_of(folder) -> dict[str, torch.Tensor]:
    """Inputs as a reader of nothing but tokenizer.json gets them."""
    encoded = Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(TEXTS)
    return {
        "input_ids": torch.tensor([each.ids for each in encoded]),
        "attention_mask": torch.tensor([each.attention_mask for each in encoded]),
    }


@torch.no_grad()
def expected_outputs(name: str, source: Source, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Torch's outputs in the order of the graph, padding zeroed."""
    mask = inputs["attention_mask"].bool()
    outputs = source.load()(**inputs)
    if name not in POOLINGS:
        return [outputs.logits]
    return [outputs.last_hidden_state, pool(outputs.last_hidden_state, mask, POOLINGS[name])]


def without_padding(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return values[mask.bool()] if values.shape[:2] == mask.shape else values


def test_all_graphs_give_what_torch_gives(case):
    name, source, exported = case
    inputs = inputs_of(exported.folder)
    expected = expected_outputs(name, source, inputs)
    mask = inputs["attention_mask"]
    for file in (ONNX_FILE, OPENVINO_FILE, INT8_FILE):
        found = start(exported.folder / file, threads=1)(inputs)
        for ours, theirs in zip(expected, found, strict=True):
            gap = (without_padding(ours, mask) - without_padding(theirs, mask)).abs().max()
            assert gap < (1e-4 if file != INT8_FILE else 0.5) * max(1.0, float(ours.abs().max()))
    assert [graph.int8 for graph in exported.graphs] == [False, True, False]
    assert exported.quantized.bytes < exported.graphs[0].bytes


def test_the_folder_is_still_a_checkpoint_of_the_same_model(case):
    name, source, exported = case
    served = Source(exported.folder)
    assert served.encoder_path == ""
    require_writable(exported.folder, overwrite=True)  # it holds nothing that kprune does not write
    assert served.pooling == POOLINGS.get(name, "mean")
    inputs = inputs_of(exported.folder)
    with torch.no_grad():
        ours, theirs = served.load()(**inputs)[0], source.load()(**inputs)[0]
    assert torch.equal(ours, theirs)
    for text in TEXTS:
        assert served.load_tokenizer()(text)["input_ids"] == source.load_tokenizer()(text)["input_ids"]


def test_text_embeddings_inference_finds_what_it_parses(case):
    name, _, exported = case
    folder = exported.folder
    assert broken_rules(folder) == []
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"][0].endswith("Classification") == (name not in POOLINGS)
    assert not (folder / "model.onnx").exists()
    assert (folder / "onnx/model.onnx").is_file()
    if name in POOLINGS:
        pooling = json.loads((folder / "1_Pooling/config.json").read_text())
        flags = [flag for flag, on in pooling.items() if flag.startswith("pooling_mode_") and on]
        assert flags == ["pooling_mode_cls_token" if name == "embedder" else "pooling_mode_lasttoken"]
        assert exported.outputs[-1] == "sentence_embedding"
    else:
        assert set(config["id2label"]) == {str(number) for number in config["label2id"].values()}
        assert exported.outputs == ["logits"]
    assert json.loads((folder / "tokenizer_config.json").read_text())["padding_side"] in ("left", "right")


def test_names_of_labels_and_the_longest_input_are_kept(case):
    name, source, exported = case
    config = json.loads((exported.folder / "config.json").read_text())
    if name in ("classifier", "tagger"):
        assert config["id2label"] == {str(n): label for n, label in source.load_config().id2label.items()}
    tokenizer = Tokenizer.from_file(str(exported.folder / "tokenizer.json"))
    limit = {"reranker": 48}.get(name, 66)
    assert len(tokenizer.encode("word " * 200).ids) == limit
    assert json.loads((exported.folder / "tokenizer_config.json").read_text())["model_max_length"] == limit


def snippets(folder) -> dict[str, str]:
    """The code of each section of a folder's card."""
    card = (folder / "README.md").read_text()
    return dict(re.findall(r"### (.*?)\n\n```python\n(.*?)```", card, re.DOTALL))


def test_the_snippets_of_the_card_run_and_agree(case, monkeypatch):
    """All snippets whose packages the tests have; benchmarks/consumers.py runs the others."""
    _, _, exported = case
    monkeypatch.chdir(exported.folder.parent)
    found = {}
    for title, code in snippets(exported.folder).items():
        if title.endswith("torch") or title in ("ONNX Runtime", "OpenVINO"):
            variables: dict[str, object] = {}
            exec(code.replace("print(outputs)", ""), variables)
            found[title] = numpy.asarray(variables["outputs"])
    assert {"ONNX Runtime", "OpenVINO"} < set(found)
    first = found.pop("ONNX Runtime")
    for title, values in found.items():
        assert numpy.abs(values.reshape(first.shape) - first).max() < 1e-4 * max(1.0, numpy.abs(first).max()), title


def test_layouts_that_do_not_exist_are_refused(tmp_path):
    with pytest.raises(KpruneError, match="there is no layout 'flat'; use one of plain, hub"):
        kprune.export(SOURCES["classifier"](tmp_path / "model"), tmp_path / "out", layout="flat")
