"""Plain `from_pretrained` reads a pruned checkpoint, and the loaded model behaves as a dense one."""

import json
import subprocess
import sys

import pytest
import tiny
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification
from uneven_model import BATCHES, change_record, uneven_result

import kprune
from kprune.models.pruned_shape import describe
from kprune.models.resize import keep_first
from kprune.models.sublayer import find


@pytest.fixture(scope="module")
def pruned():
    return uneven_result()


@pytest.fixture
def folder(pruned, tmp_path):
    pruned.model.save_pretrained(tmp_path / "small")
    return tmp_path / "small"


@pytest.mark.parametrize(("family", "kind"), tiny.ALL_CASES)
def test_load_save_load_is_bit_for_bit(family, kind, tmp_path):
    small = kprune.prune(tiny.tiny_model(family, kind), BATCHES, reduction=0.8).model
    loader = tiny.HEADS[kind][0]
    small.save_pretrained(tmp_path / "one")
    once = loader.from_pretrained(tmp_path / "one")
    once.save_pretrained(tmp_path / "two")
    twice = loader.from_pretrained(tmp_path / "two")
    for model in (once, twice):
        assert type(model) is type(small)
        assert tiny.same_outputs(small, model, BATCHES[0])
    assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "two/model.safetensors").read_bytes()
    assert (tmp_path / "one/config.json").read_text() == (tmp_path / "two/config.json").read_text()
    assert not [file for file in (tmp_path / "one").rglob("*") if file.suffix in (".bin", ".pt", ".pkl")]


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
def test_emptied_sublayers_are_saved_and_loaded(family, tmp_path):
    model = tiny.tiny_model(family)
    for sublayer in find(model)[1:4]:  # an FFN, and a whole layer
        keep_first(sublayer, 0)
    model.config.quantization_config = describe(model, [])
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert [sublayer.units for sublayer in find(loaded)][1:4] == [0, 0, 0]
    assert tiny.same_outputs(model, loaded, BATCHES[0])


def test_a_saved_file_is_really_smaller(pruned, folder, tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path / "dense")
    sizes = [(path / "model.safetensors").stat().st_size for path in (tmp_path / "dense", folder)]
    saved = 4 * (pruned.parameters[0] - pruned.parameters[1])
    assert sizes[0] - sizes[1] >= saved


def test_a_loaded_model_behaves_as_a_dense_one(pruned, folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert not getattr(model, "is_quantized", False)
    assert model.half().dtype == torch.float16
    assert model.float().to("cpu").dtype == torch.float32
    assert AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.bfloat16).dtype == torch.bfloat16

    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    labels = torch.zeros(8, dtype=torch.long)
    losses = []
    for _ in range(5):
        loss = model(**BATCHES[0], labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_it_can_be_compiled(pruned):
    # The eager backend runs what dynamo traces, without a C++ compiler.
    compiled = torch.compile(pruned.model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(**BATCHES[0]).logits, pruned.model(**BATCHES[0]).logits)


def test_the_trainer_trains_and_saves_it(folder, tmp_path):
    from transformers import Trainer, TrainingArguments

    model = AutoModelForSequenceClassification.from_pretrained(folder)
    rows = [{"input_ids": text[:4], "labels": torch.tensor(1)} for text in tiny.texts(8)]
    arguments = TrainingArguments(str(tmp_path / "run"), max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True)
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    trainer.save_model(str(tmp_path / "trained"))
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "trained")
    assert tiny.same_outputs(model.eval(), again, BATCHES[0])


def test_an_encoder_is_read_out_of_a_model_with_a_head_and_the_other_way_round(pruned, folder, tmp_path):
    bare = AutoModel.from_pretrained(folder)
    assert tiny.same_outputs(bare, pruned.model.bert, BATCHES[0])
    bare.save_pretrained(tmp_path / "bare")
    headed = AutoModelForSequenceClassification.from_pretrained(tmp_path / "bare", num_labels=3)
    assert tiny.same_outputs(headed.bert, bare, BATCHES[0])
    assert headed.classifier.weight.isfinite().all()
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "bare").num_parameters() > 0


def test_a_new_head_has_another_number_of_labels(pruned, folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=7, ignore_mismatched_sizes=True)
    assert model.classifier.weight.shape == (7, 32)
    assert tiny.same_outputs(model.bert, pruned.model.bert, BATCHES[0])
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):  # transformers' own error
        AutoModelForSequenceClassification.from_pretrained(folder, num_labels=7)


def test_mismatched_layers_are_refused_even_if_sizes_are_ignored(folder):
    change_record(folder, lambda record: record["per_layer"][0].update(ffn=record["per_layer"][0]["ffn"] - 1))
    with pytest.raises(kprune.KpruneError, match="do not belong together"):
        AutoModelForSequenceClassification.from_pretrained(folder, ignore_mismatched_sizes=True)


def test_the_record_says_what_to_do(folder):
    record = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert "`import kprune` before from_pretrained" in record["note"]
    assert record["format"] == 1


def test_a_config_passed_by_hand_works(pruned, folder):
    config = AutoModelForSequenceClassification.from_pretrained(folder).config
    model = AutoModelForSequenceClassification.from_pretrained(folder, config=config)
    assert tiny.same_outputs(model, pruned.model, BATCHES[0])


def test_without_kprune_loading_fails_loudly(folder):
    code = f"from transformers import AutoModel; AutoModel.from_pretrained({str(folder)!r})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "Unknown quantization type, got kprune" in run.stderr  # the model card says so
    assert "size mismatch" in run.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["per_layer"].pop(), "per_layer' has 2 layers, the config 3 layers"),
        (lambda r: r.update(per_layer="x"), "per_layer' has 'x'"),
        (lambda r: r["per_layer"][0].update(attention=5), "layer 0 of the record has 5 attention units, .* 0 to 4"),
        (lambda r: r["per_layer"][0].update(ffn=-1), "layer 0 of the record has -1 ffn units"),
        (lambda r: r["per_layer"][0].update(ffn=10**12), "has 1000000000000 ffn units, the config allows 0 to 48"),
        (lambda r: r["per_layer"][0].update(ffn=True), "has True ffn units"),
        (lambda r: r["per_layer"][0].update(ffn="3"), "has '3' ffn units"),
        (lambda r: r["per_layer"][1].pop("ffn"), "layer 1 of the record is .*, not counts of"),
        (lambda r: r.update(format=9), "format 9 and this kprune reads 1"),
        (lambda r: r.pop("per_layer"), "per_layer' has None"),
        (lambda r: r.pop("history"), "history' is None"),
        (lambda r: [layer.update(ffn=0) for layer in r["per_layer"]], "which the pruning record removes"),
        (lambda r: [layer.update(attention=0) for layer in r["per_layer"]], "which the pruning record removes"),
    ],
)
def test_a_tampered_record_is_refused_with_what_disagrees(folder, change, message):
    change_record(folder, change)
    with pytest.raises(kprune.KpruneError, match=message):
        AutoModelForSequenceClassification.from_pretrained(folder)
