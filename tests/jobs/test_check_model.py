"""A model type without a row: checked, pruned, saved, and loaded in a process that has never seen it."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import zoo
from command_line import kprune, write_text
from task_data import load_tokenizer
from transformers import GraniteConfig, GraniteForCausalLM, RoFormerConfig, RoFormerForSequenceClassification

import kprune as package
from kprune.checkpoints.inspection import inspect
from kprune.checkpoints.source import Source
from kprune.errors import BadCheckpoint, NotFinite, UnsupportedModel
from kprune.jobs.check_model import check_laws, sample_inputs
from kprune.models import row_proof
from kprune.models.families import FAMILIES, REFUSED, REGISTERED
from kprune.models.laws import LAWS, LawBroken
from kprune.models.proposal import propose

LOAD = """
import sys, torch, kprune
from transformers import AutoModelForSequenceClassification
from kprune.checkpoints.source import Source
folder = sys.argv[1]
ids = torch.arange(100, 120).view(2, 10)
with torch.no_grad():
    plain = AutoModelForSequenceClassification.from_pretrained(folder)(input_ids=ids).logits
    checked = Source(folder).load()(input_ids=ids).logits
assert plain.equal(checked)
print(plain.tolist())
"""


@pytest.fixture(autouse=True)
def _forget_rows():
    yield
    REGISTERED.clear()


@pytest.fixture(scope="module")
def unlisted(tmp_path_factory):
    """A folder with a classifier of a type that the table does not have."""
    tokenizer = load_tokenizer()
    torch.manual_seed(0)
    config = RoFormerConfig(
        vocab_size=len(tokenizer), max_position_embeddings=128, initializer_range=0.25, num_labels=3, **zoo.SIZES
    )
    folder = tmp_path_factory.mktemp("unlisted") / "model"
    RoFormerForSequenceClassification(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pruned(unlisted, tmp_path_factory):
    """What `kprune prune` prints for it, and the folder that it writes."""
    folder = tmp_path_factory.mktemp("pruned")
    text = write_text(folder / "lines.txt", 120)
    options = ("--text", text, "--reduction", 0.6, "--tokens", 1500, "--align", 1)
    result = kprune("prune", unlisted, folder / "small", *options)
    assert result.exit_code == 0, result.output
    REGISTERED.clear()  # tests begin as a process that has never seen the model type
    return result.output, folder / "small"


def test_a_listed_model_is_checked_with_the_tables_row():
    model = zoo.build("bert")
    assert package.check(model, zoo.batches(model)) == FAMILIES["bert"]
    assert REGISTERED == {}


def test_every_law_is_reported():
    model = zoo.build("t5")
    checked = check_laws(model, zoo.batches(model))
    assert [finding.law for finding in checked.findings] == [*LAWS, "save and load"]
    assert checked.is_sound
    assert not checked.is_proposed


def test_a_wrong_row_is_reported_and_refused(monkeypatch):
    row = FAMILIES["bert"]
    wrong = replace(row.blocks["ffn"], consumer="attention.output.dense")
    model = zoo.build("bert")
    batches = zoo.batches(model)
    monkeypatch.setitem(FAMILIES, "bert", replace(row, blocks={**row.blocks, "ffn": wrong}))
    checked = check_laws(model, batches)
    assert not checked.is_sound
    with pytest.raises(LawBroken, match="the law 'units' does not hold: layer 0 ffn has 32 features"):
        package.check(model, batches)


def test_a_python_check_and_prune_find_the_same_row(monkeypatch):
    model = zoo.build("bert")
    batches = zoo.batches(model, count=4)
    monkeypatch.delitem(FAMILIES, "bert")
    row = package.check(model, batches)
    assert {"bert": row} == REGISTERED
    REGISTERED.clear()
    small = package.prune(model, batches, reduction=0.5, align=1)
    assert {"bert": row} == REGISTERED
    assert small.model.config.quantization_config["family"]["layers"] == "encoder.layer"


def test_the_command_checks_a_folder(unlisted):
    result = kprune("check", unlisted)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "roformer, a proposed row"
    assert [line.split()[-1] for line in lines[1 : len(LAWS) + 2]] == ["ok"] * (len(LAWS) + 1)
    assert "ROFORMER = Family(" in result.output
    REGISTERED.clear()
    printed = json.loads(kprune("check", unlisted, "--json").stdout)
    assert printed["proposed_row"]["mid_stream"] == "attention.output"


def test_the_command_fails_with_the_law_that_failed(unlisted, monkeypatch):
    monkeypatch.setitem(LAWS, "removal", lambda model, kind, batch: (_ for _ in ()).throw(LawBroken("a test.")))
    result = kprune("check", unlisted)
    assert result.exit_code == 1
    assert "no row keeps all laws. The best one fails: a test." in " ".join(result.stderr.split())


def test_a_refused_type_is_refused_before_weights_are_read(unlisted, monkeypatch):
    monkeypatch.setitem(REFUSED, "roformer", "of a reason; use another")
    monkeypatch.setattr(Source, "class_of", lambda *args: pytest.fail("weights are read"))
    result = kprune("check", unlisted)
    assert (result.exit_code, "of a reason" in result.stderr) == (1, True)


def test_prune_proposes_a_row_and_prints_it(pruned):
    output, folder = pruned
    assert "ROFORMER = Family(" in output
    record = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert record["family"]["blocks"]["ffn"]["consumer"] == "output.dense"


def test_a_pruned_folder_loads_in_a_process_that_does_not_know_the_row(pruned):
    _, folder = pruned
    done = subprocess.run([sys.executable, "-c", LOAD, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert REGISTERED == {}
    model = Source(folder).load()
    with torch.no_grad():
        logits = model(input_ids=torch.arange(100, 120).view(2, 10)).logits
    torch.testing.assert_close(torch.tensor(json.loads(done.stdout)), logits)
    shape = inspect(folder).shape
    assert (shape.dense_heads, shape.dense_neurons) == (4, 48)
    assert sum(shape.neurons) < 3 * 48


@pytest.mark.parametrize(
    ("block", "field", "value"),
    [
        ("ffn", "consumer", "intermediate.nothing"),
        ("attention", "dense_units", "nothing"),
        ("attention", "dense_units", "architectures"),
        ("attention", "unit_width", ["attention.self.nothing"]),
        ("attention", "counts", [["attention.self.forward.nothing", "units"]]),
        ("ffn", "producers", {"__class__": 1}),
        ("ffn", "producers", {"output.LayerNorm": 1}),
    ],
)
def test_a_row_that_does_not_fit_its_folder_is_an_error(pruned, tmp_path, block, field, value):
    _, folder = pruned
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["family"]["blocks"][block][field] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises((BadCheckpoint, UnsupportedModel)):
        Source(tmp_path).load()
    with pytest.raises((BadCheckpoint, UnsupportedModel)):
        RoFormerForSequenceClassification.from_pretrained(tmp_path)


def test_a_pruned_model_is_not_checked_again(pruned):
    model = Source(pruned[1]).load()
    with pytest.raises(UnsupportedModel, match="pruned already"):
        package.check(model, [{"input_ids": torch.arange(100, 120).view(2, 10)}])


@pytest.mark.parametrize("name", ["vit", "whisper", "wav2vec2"])
def test_models_of_images_and_sound_get_inputs_of_their_own(name):
    model = zoo.build(name)
    inputs = sample_inputs(Source, model)
    with torch.no_grad():
        (model.get_encoder() if name == "whisper" else model)(**inputs)
    assert set(inputs) == {model.main_input_name}


def test_the_command_checks_an_image_model(tmp_path):
    zoo.build("siglip_vision_model").save_pretrained(tmp_path)
    result = kprune("check", tmp_path)
    assert result.exit_code == 0, result.output
    assert "siglip_vision_model, the row of the table" in result.output


def test_prune_in_python_proposes_a_row(unlisted):
    model = RoFormerForSequenceClassification.from_pretrained(unlisted).eval()
    ids = torch.randint(100, 900, (48, 24), generator=torch.Generator().manual_seed(0))
    batches = ({"input_ids": part} for part in ids.split(8))  # a generator is read once
    pruned = package.prune(model, batches, reduction=0.5, ridge=1e-3, align=4)
    assert pruned.flops[1] <= 0.5 * pruned.flops[0]
    assert "family" in pruned.model.config.quantization_config


def test_a_row_is_checked_on_every_model_of_its_type():
    """Granite scales what a sublayer adds, if its config says so: a row holds for one model and not for another."""
    sizes = {**zoo.DECODER, "vocab_size": 99, "pad_token_id": 1, "initializer_range": 0.25}
    plain, scaled = (
        GraniteForCausalLM(GraniteConfig(**sizes, residual_multiplier=multiplier)).eval() for multiplier in (1.0, 0.22)
    )
    ids = torch.randint(5, 99, (48, 24), generator=torch.Generator().manual_seed(0))
    batches = [{"input_ids": part} for part in ids.split(8)]
    package.prune(plain, batches, reduction=0.5, ridge=1e-3, align=4)
    with pytest.raises(UnsupportedModel, match=r"X \+ Sub\(X\)"):
        package.prune(scaled, batches, reduction=0.5, ridge=1e-3, align=4)


def test_a_pruned_model_without_a_row_is_compared_with_its_dense_model(pruned, unlisted, tmp_path):
    write_text(tmp_path / "text.txt", 20)
    result = kprune("evaluate", pruned[1], "--against", unlisted, "--text", tmp_path / "text.txt", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["fidelity"][0]["name"] == "agreement"


def test_commands_propose_a_row_for_a_dense_model(unlisted, tmp_path):
    inspected = json.loads(kprune("inspect", unlisted, "--json").stdout)
    assert (inspected["shape"]["dense_heads"], inspected["shape"]["heads"]) == (4, [4, 4, 4])
    REGISTERED.clear()
    exported = kprune("export", unlisted, tmp_path / "graph")
    assert exported.exit_code == 0, exported.output
    REGISTERED.clear()
    graph = ("bench", tmp_path / "graph", "--runtime", "onnxruntime", "--shape", "1x8", "--seconds", 0.01, "--json")
    alone = kprune(*graph)  # a graph has no weights, and needs no row
    assert alone.exit_code == 0, alone.output


@pytest.mark.slow
def test_a_dense_model_gets_a_row_before_it_is_timed(unlisted, pruned):
    options = ("--shape", "1x8", "--seconds", 0.01, "--json")
    timed = kprune("bench", pruned[1], "--against", unlisted, "--runtime", "torch", *options)
    assert timed.exit_code == 0, timed.output
    small, dense = json.loads(timed.stdout)["timings"][:2]
    assert small["flops_ratio"] > 2
    assert dense["flops_ratio"] is None


def test_a_command_proposes_a_row_once(unlisted, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(row_proof, "propose", lambda *args, **options: calls.append(args) or propose(*args, **options))
    text = write_text(tmp_path / "lines.txt", 120)
    options = ("--text", text, "--reduction", 0.5, "--tokens", 1500, "--align", 1)
    result = kprune("prune", unlisted, tmp_path / "small", *options)
    assert result.exit_code == 0, result.output
    assert len(calls) == 1


def test_each_of_two_models_of_a_type_keeps_its_own_row(unlisted):
    models = [RoFormerForSequenceClassification.from_pretrained(unlisted).eval() for _ in range(2)]
    ids = torch.randint(100, 900, (48, 24), generator=torch.Generator().manual_seed(0))
    rows = [package.check(model, [{"input_ids": ids}]) for model in models]
    REGISTERED["roformer"] = replace(rows[0], causal=True)  # as another model of the type might have it
    pruned = package.prune(models[0], [{"input_ids": ids}], reduction=0.5, ridge=1e-3, align=4)
    assert "causal" not in pruned.model.config.quantization_config["family"]


WRONG_ROWS = {
    "the stream is read elsewhere": (("blocks", "ffn", "residual_input"), "attention"),
    "another module makes the features": (("blocks", "attention", "module"), "attention.output"),
    "no count is rewritten": (("blocks", "attention", "counts"), []),
    "another stream": (("mid_stream",), None),
    "other embeddings": (("embeddings",), "encoder"),
    "parallel sublayers": (("is_parallel",), True),
    "no such positions": (("positions",), "architectures"),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_a_changed_row_of_a_pruned_folder_is_refused_by_prune(pruned, tmp_path, name):
    (path, value), folder = WRONG_ROWS[name], tmp_path / "changed"
    shutil.copytree(pruned[1], folder)
    config = json.loads((folder / "config.json").read_text())
    part = config["quantization_config"]["family"]
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    (folder / "config.json").write_text(json.dumps(config))
    text = write_text(tmp_path / "lines.txt", 120)
    options = ("--text", text, "--reduction", 0.5, "--tokens", 1500, "--align", 1)
    result = kprune("prune", folder, tmp_path / "smaller", *options)
    assert result.exit_code == 1, result.exception
    assert "the record's 'family' does not describe the" in " ".join(result.stderr.split())
    assert not (tmp_path / "smaller").exists()


def test_a_pruned_folder_with_a_row_of_its_own_is_pruned_again(pruned, tmp_path):
    text = write_text(tmp_path / "lines.txt", 120)
    options = ("--text", text, "--reduction", 0.3, "--tokens", 1500, "--align", 1)
    result = kprune("prune", pruned[1], tmp_path / "smaller", *options)
    assert result.exit_code == 0, result.output
    assert sum(inspect(tmp_path / "smaller").shape.neurons) < sum(inspect(pruned[1]).shape.neurons)


def test_check_refuses_a_text_that_it_cannot_use(unlisted, tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    result = kprune("check", unlisted, "--text", tmp_path / "empty.txt")
    assert (result.exit_code, "has no lines with text" in " ".join(result.stderr.split())) == (1, True)
    zoo.build("vit").save_pretrained(tmp_path / "vit")
    text = write_text(tmp_path / "lines.txt", 10)
    result = kprune("check", tmp_path / "vit", "--text", text)
    assert result.exit_code == 2
    assert "--text is for models of text, and vit reads images" in " ".join(result.stderr.split())


@pytest.mark.parametrize("name", ["bert", "roformer"])
def test_check_names_a_weight_that_is_not_a_number(unlisted, tmp_path, name):
    model = zoo.build("bert") if name == "bert" else RoFormerForSequenceClassification.from_pretrained(unlisted)
    with torch.no_grad():
        next(model.parameters())[0, 0] = float("nan")
    with pytest.raises(NotFinite, match=r"word_embeddings\.weight has NaN or infinite entries"):
        package.check(model, [{"input_ids": torch.arange(10, 30).view(2, 10)}])
    with pytest.raises(NotFinite, match=r"word_embeddings\.weight has NaN or infinite entries"):
        package.prune(model, [{"input_ids": torch.arange(10, 30).view(2, 10)}], ridge=1e-3)
