"""Native and self-contained folders load in a process in which kprune cannot be imported."""

import json
import subprocess
import sys

import pytest
import tiny
import torch
import zoo
from command_line import kprune as command
from native_models import NATIVE, native_model
from task_data import load_tokenizer
from transformers import AutoModel, AutoModelForSequenceClassification
from uneven_model import BATCHES, uneven_result

import kprune
from kprune.checkpoints.files import MODELING_FILE
from kprune.checkpoints.self_contained import make_self_contained, write_modeling
from kprune.models.canonical import to_canonical
from kprune.models.pruned_shape import describe, record_of
from kprune.models.resize import add_bias, shrink
from kprune.models.sublayer import find

WITHOUT_KPRUNE = """
import sys
sys.modules["kprune"] = None  # an import raises ImportError
import json, torch, transformers
for folder in sys.argv[1:]:
    name, is_native, inputs, expected = torch.load(folder + "/case.pt")
    if is_native:
        model = getattr(transformers, name).from_pretrained(folder)
    else:
        autos = json.load(open(folder + "/config.json"))["auto_map"]
        auto = next(auto for auto, each in autos.items() if each == "modeling_pruned." + name)
        model = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True)
        assert type(model).__name__ == name
    with torch.no_grad():
        outputs = (model.get_encoder() if name.startswith("Whisper") else model)(**inputs).to_tuple()
    print(float(max((a - b).abs().max() for a, b in zip(outputs, expected) if isinstance(a, torch.Tensor))))
"""


def uneven_model(name, kind):
    """A model with another number of units in every sublayer, an emptied attention and an emptied FFN."""
    model = zoo.build(name, kind)
    to_canonical(model)
    for number, sublayer in enumerate(find(model)):
        if name == "llama":
            add_bias(sublayer)
        units = 0 if number in (2, 3) else (sublayer.units + number % 2) // 2
        keep = torch.zeros(sublayer.units, dtype=torch.bool)
        keep[torch.randperm(sublayer.units)[:units]] = True
        shrink(sublayer, keep)
    model.config.quantization_config = describe(model, [])
    return model


@torch.no_grad()
def outputs_of(model, inputs):
    module = model.get_encoder() if type(model).__name__.startswith("Whisper") else model
    return tuple(value if isinstance(value, torch.Tensor) else None for value in module(**inputs).to_tuple())


def write_case(model, folder, *, is_native):
    """Write the model, with inputs and outputs; returns the folder's name."""
    model.save_pretrained(folder)
    if not is_native:
        write_modeling(folder, model.config, type(model))
    inputs = zoo.batches(model)[0]
    torch.save((type(model).__name__, is_native, inputs, outputs_of(model, inputs)), folder / "case.pt")
    return str(folder)


def run_without_kprune(code, *arguments, cache):
    """The output of a process in which kprune cannot be imported."""
    environment = {"HF_MODULES_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("is_alike", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_family_loads_where_kprune_cannot_be_imported(is_alike, tmp_path):
    native, alone = (
        [case for case in cases if (case[0] in zoo.SAME_CODE) == is_alike] for cases in (NATIVE, zoo.ONE_EACH)
    )
    folders = [
        write_case(native_model(name, kind), tmp_path / f"native-{number}", is_native=True)
        for number, (name, kind) in enumerate(native)
    ]
    folders += [
        write_case(uneven_model(name, kind), tmp_path / f"alone-{number}", is_native=False)
        for number, (name, kind) in enumerate(alone)
    ]
    printed = run_without_kprune(WITHOUT_KPRUNE, *folders, cache=tmp_path / "modules").split()
    differences = dict(zip([*native, *alone], map(float, printed), strict=True))
    assert {case: value for case, value in differences.items() if value > 1e-5} == {}


SENTENCES = """
import sys
sys.modules["kprune"] = None
from sentence_transformers import CrossEncoder, SentenceTransformer
folder, texts = sys.argv[1], sys.argv[2:]
print(SentenceTransformer(folder + "/embedder", device="cpu", trust_remote_code=True).encode(texts)[:, :3].tolist())
reranker = CrossEncoder(folder + "/reranker", device="cpu", trust_remote_code=True)
print(reranker.predict([(texts[0], text) for text in texts]).tolist())
print(SentenceTransformer(folder + "/native", device="cpu").encode(texts)[:, :3].tolist())

import torch
from transformers import AutoModelForSequenceClassification as Auto
model = Auto.from_pretrained(folder + "/reranker", trust_remote_code=True).train()
model(input_ids=torch.arange(5, 25).view(2, 10), labels=torch.tensor([0.0, 1.0])).loss.backward()
assert all(weights.grad is not None for weights in model.classifier.parameters())
model.save_pretrained(folder + "/again")
again = Auto.from_pretrained(folder + "/again", trust_remote_code=True)
assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
"""


def test_sentence_transformers_loads_and_transformers_trains_without_kprune(tmp_path):
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    texts = ["one text", "another text, which is longer", "a third"]
    tokenizer = load_tokenizer()
    for name, kind in {"bare": "embedding", "plain": "classification"}.items():
        labels = {} if kind == "embedding" else {"num_labels": 1}
        model = tiny.tiny_model("bert", kind, vocab_size=len(tokenizer), pad_token_id=0, **labels)
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    modules = [Transformer(str(tmp_path / "bare")), Pooling(32, pooling_mode="mean")]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "dense-embedder"))
    CrossEncoder(str(tmp_path / "plain"), device="cpu").save_pretrained(str(tmp_path / "dense-reranker"))
    for name, source, options in (
        ("embedder", "dense-embedder", {"reduction": 0.8, "align": 1}),
        ("reranker", "dense-reranker", {"reduction": 0.8, "align": 1}),
        ("native", "dense-embedder", {"reduction": 0.2, "align": 8, "native": True}),
    ):
        result = kprune.prune(kprune.Source(tmp_path / source).load(), BATCHES, **options)
        kprune.save(result, tmp_path / name, source=tmp_path / source, self_contained=True)
    assert not list((tmp_path / "native").rglob(MODELING_FILE))
    reranker = CrossEncoder(str(tmp_path / "reranker"), device="cpu")
    expected = [
        SentenceTransformer(str(tmp_path / "embedder"), device="cpu").encode(texts)[:, :3],
        reranker.predict([(texts[0], text) for text in texts]),
        SentenceTransformer(str(tmp_path / "native"), device="cpu").encode(texts)[:, :3],
    ]
    printed = run_without_kprune(SENTENCES, str(tmp_path), *texts, cache=tmp_path / "modules")
    for line, values in zip(printed.splitlines(), expected, strict=True):
        torch.testing.assert_close(torch.tensor(json.loads(line)), torch.tensor(values.tolist()), atol=1e-5, rtol=1e-5)
    assert record_of(AutoModel.from_pretrained(tmp_path / "again").config) is not None
    assert (tmp_path / "again" / MODELING_FILE).is_file()


@pytest.fixture
def folder(tmp_path):
    return kprune.save(uneven_result(), tmp_path / "small", self_contained=True)


def test_with_kprune_the_folder_loads_in_both_ways(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    for options in ({}, {"trust_remote_code": True}):
        loaded = AutoModelForSequenceClassification.from_pretrained(folder, **options)
        assert tiny.same_outputs(loaded, uneven_result().model, BATCHES[0])
        again = kprune.prune(loaded, BATCHES, reduction=0.2, align=1)
        assert type(again.model).__name__ == "BertForSequenceClassification"


def test_a_model_pruned_or_saved_again_names_no_file_that_is_absent(folder, tmp_path):
    loaded = AutoModelForSequenceClassification.from_pretrained(folder)
    again = kprune.prune(loaded, BATCHES, reduction=0.2, align=1)
    for name, source in {"without": None, "with": folder}.items():
        written = kprune.save(again, tmp_path / name, source=source)
        config = json.loads((written / "config.json").read_text())
        assert ("auto_map" in config) == (written / MODELING_FILE).is_file() == (source is not None)


def test_a_folder_becomes_self_contained_later(tmp_path):
    plain = kprune.save(uneven_result(), tmp_path / "plain")
    before = {file.name: file.read_bytes() for file in plain.iterdir()}
    result = command("self-contain", plain)
    assert result.exit_code == 0, result.output
    assert f"Wrote {plain / MODELING_FILE}" in result.output.replace("\n", "")
    after = {file.name: file.read_bytes() for file in plain.iterdir()}
    assert set(after) - set(before) == {MODELING_FILE}
    assert {name for name in before if before[name] != after[name]} == {"config.json"}
    config = json.loads(after["config.json"])
    autos = config.pop("auto_map")
    assert config == json.loads(before["config.json"])
    assert autos["AutoModel"] == "modeling_pruned.BertModel"
    assert autos["AutoModelForSequenceClassification"] == "modeling_pruned.BertForSequenceClassification"
    compile((plain / MODELING_FILE).read_text(), MODELING_FILE, "exec")


def test_an_ordinary_model_needs_no_file(tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path / "dense")
    with pytest.raises(kprune.KpruneError, match="is an ordinary model, which loads without kprune"):
        make_self_contained(tmp_path / "dense")


def test_a_self_contained_folder_can_be_replaced_and_says_how_it_loads(folder):
    assert "pass `trust_remote_code=True`" in (folder / "README.md").read_text()
    kprune.save(uneven_result(), folder, overwrite=True)
    assert not (folder / MODELING_FILE).exists()
    assert "trust_remote_code" not in (folder / "README.md").read_text()
    (folder / "other.py").write_text("")
    with pytest.raises(kprune.KpruneError, match=r"it holds other\.py"):
        kprune.save(uneven_result(), folder, overwrite=True)


def test_a_folder_that_cannot_be_written_is_named(folder, monkeypatch):
    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied")

    before = (folder / "config.json").read_bytes()
    monkeypatch.setattr("pathlib.Path.replace", refuse)
    with pytest.raises(kprune.KpruneError, match=r"could not write .*modeling_pruned\.py: Permission denied; copy"):
        make_self_contained(folder)
    assert (folder / "config.json").read_bytes() == before
    assert not list(folder.glob("*.partial")) + list(folder.glob(".*.partial"))
