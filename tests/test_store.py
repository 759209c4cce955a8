import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

import kprune
from kprune.demo import embedded_model
from kprune.errors import BadCheckpoint
from kprune.record import record_of
from kprune.store import Source, require_free, save, tidy, whole_or_absent

BATCHES = tiny.batched(tiny.texts(64))


@pytest.fixture(scope="module")
def pruned():
    """A model with every oddity: uneven layers, an emptied attention and an emptied feed-forward block."""
    result = kprune.prune(tiny.tiny_model(), BATCHES, reduction=0.85, align=1)
    assert any(not step.kept for step in result.steps)
    return result


@pytest.fixture
def folder(pruned, tmp_path):
    pruned.model.save_pretrained(tmp_path / "small")
    return tmp_path / "small"


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
@pytest.mark.parametrize("kind", tiny.KIND_NAMES)
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


def test_a_config_passed_by_hand_works(pruned, folder):
    config = AutoModelForSequenceClassification.from_pretrained(folder).config
    model = AutoModelForSequenceClassification.from_pretrained(folder, config=config)
    assert tiny.same_outputs(model, pruned.model, BATCHES[0])


def test_without_kprune_loading_fails_loudly(folder):
    code = f"from transformers import AutoModel; AutoModel.from_pretrained({str(folder)!r})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "size mismatch" in run.stderr.lower() or "mismatch" in run.stderr.lower()


def change_record(folder: Path, change) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config["quantization_config"])
    (folder / "config.json").write_text(json.dumps(config))


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
        (lambda r: [layer.update(ffn=0) for layer in r["per_layer"]], "leaves no room for"),
        (lambda r: [layer.update(attention=0) for layer in r["per_layer"]], "leaves no room for"),
    ],
)
def test_a_tampered_record_is_refused_with_what_disagrees(folder, change, message):
    change_record(folder, change)
    with pytest.raises(kprune.KpruneError, match=message):
        AutoModelForSequenceClassification.from_pretrained(folder)


def test_weights_of_another_model_are_refused_with_what_disagrees(folder, tmp_path):
    other = kprune.prune(tiny.tiny_model(), BATCHES, reduction=0.4).model
    other.save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other/model.safetensors", folder / "model.safetensors")
    with pytest.raises(kprune.KpruneError, match=r"do not belong together"):
        AutoModelForSequenceClassification.from_pretrained(folder)


def test_shapes_that_disagree_are_told(folder):
    def one_less(record):
        layer = next(layer for layer in record["per_layer"] if layer["ffn"] > 1)
        layer["ffn"] -= 1

    change_record(folder, one_less)
    with pytest.raises(kprune.KpruneError, match=r"has shape \(.*\) in the weights and \(.*\) by the pruning record"):
        AutoModelForSequenceClassification.from_pretrained(folder)


def test_damaged_weights_are_refused(folder):
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(kprune.KpruneError, match="cannot be read"):
        AutoModelForSequenceClassification.from_pretrained(folder)


def test_a_missing_weight_is_not_made_up_in_silence(folder, capfd):
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("intermediate.dense.weight"))
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(kprune.KpruneError, match=f"{name}.* is missing"):
        AutoModelForSequenceClassification.from_pretrained(folder)


def test_a_folder_is_whole_or_absent(tmp_path):
    target = tmp_path / "out"

    def write_and_fail():
        with whole_or_absent(target) as partial:
            (partial / "half").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    assert list(tmp_path.iterdir()) == []
    with whole_or_absent(target) as partial:
        (partial / "config.json").write_text("{}")
    assert [path.name for path in target.iterdir()] == ["config.json"]


def test_an_existing_folder_is_replaced_only_when_asked_and_only_by_a_whole_one(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "config.json").write_text("old")
    (target / "model.safetensors").write_text("old")
    with (
        pytest.raises(kprune.KpruneError, match="exists; choose another folder, or pass --overwrite"),
        whole_or_absent(target),
    ):
        pass
    with pytest.raises(ZeroDivisionError), whole_or_absent(target, overwrite=True):
        1 / 0  # noqa: B018
    assert (target / "config.json").read_text() == "old"
    with whole_or_absent(target, overwrite=True) as partial:
        (partial / "config.json").write_text("new")
    assert (target / "config.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("files", [["mother.txt"], ["config.json", "index.html", "model.safetensors"], ["config.json"]])
def test_a_folder_that_is_no_checkpoint_is_never_replaced(files, tmp_path):
    (tmp_path / "mine").mkdir()
    for name in files:
        (tmp_path / "mine" / name).write_text("dear")

    def replace():
        with whole_or_absent(tmp_path / "mine", overwrite=True):
            pass

    with pytest.raises(kprune.KpruneError, match="than a checkpoint"):
        replace()
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == sorted(files)


def test_a_linked_folder_is_replaced_behind_its_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/model.safetensors").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with whole_or_absent(tmp_path / "link", overwrite=True) as partial:
        (partial / "model.safetensors").write_text("new")
    assert (tmp_path / "there/model.safetensors").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "there"]


def test_of_two_runs_into_one_folder_the_second_does_not_replace_the_first(tmp_path):
    def both():
        with whole_or_absent(tmp_path / "out") as slow:
            (slow / "config.json").write_text("slow")
            (tmp_path / "out").mkdir()  # as the other run does
            (tmp_path / "out/config.json").write_text("fast")

    with pytest.raises(kprune.KpruneError, match="out was written by another run meanwhile; choose another folder"):
        both()
    assert (tmp_path / "out/config.json").read_text() == "fast"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("place", ["/proc", "/proc/none/deep"])
def test_a_folder_that_cannot_be_written_is_refused_at_once(place):
    with pytest.raises(kprune.KpruneError, match=r"cannot write to /proc: .*; choose another folder"):
        require_free(Path(place) / "out", overwrite=False)


def test_a_folder_that_cannot_be_looked_at_is_refused(monkeypatch, tmp_path):
    def forbidden(path):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as without_rights:
        without_rights.setattr(Path, "exists", forbidden)
        with pytest.raises(kprune.KpruneError, match=r"cannot write to .*: Permission denied; choose another folder"):
            require_free(tmp_path / "out", overwrite=False)
    with pytest.raises(kprune.KpruneError, match="/ exists; choose another folder"):
        require_free(Path("/"), overwrite=False)


def name_class(folder: Path, name: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [name]}))


def test_a_checkpoint_without_its_head_is_refused(tmp_path):
    tiny.tiny_model("bert", "embedding").save_pretrained(tmp_path)
    name_class(tmp_path, "BertForSequenceClassification")
    with pytest.raises(kprune.KpruneError, match="lacks weights of a BertForSequenceClassification, classifier"):
        Source(tmp_path).load()


def test_a_class_that_transformers_does_not_have_is_refused(tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path)
    name_class(tmp_path, "MyOwnBert")
    with pytest.raises(kprune.KpruneError, match="holds a 'MyOwnBert', which transformers does not have"):
        Source(tmp_path).load()


def test_a_cross_encoder_folder_keeps_its_head(tmp_path):
    tiny.tiny_model("bert", "regression").save_pretrained(tmp_path)
    modules = [{"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "sentence_bert_config.json").write_text('{"transformer_task": "sequence-classification"}')
    assert type(Source(tmp_path).load()).__name__ == "BertForSequenceClassification"


FULL_DISK = """
import resource, signal, sys, torch
import kprune, tiny
from kprune.store import save
pruned = kprune.prune(tiny.tiny_model(), tiny.batched(tiny.texts(64)), reduction=0.5)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # every write beyond this fails, as on a full disk
try:
    save(pruned, sys.argv[1])
except kprune.KpruneError as error:
    print(error)
"""

KILLED = """
import os, signal, sys
import kprune, tiny, kprune.store
from transformers import PreTrainedModel
pruned = kprune.prune(tiny.tiny_model(), tiny.batched(tiny.texts(64)), reduction=0.5)
write = PreTrainedModel.save_pretrained
def write_and_die(self, folder, **kwargs):
    write(self, folder, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
PreTrainedModel.save_pretrained = write_and_die
kprune.save(pruned, sys.argv[1])
"""


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )


def test_a_full_disk_leaves_nothing(tmp_path):
    run = run_python(FULL_DISK, str(tmp_path / "out"))
    assert run.returncode == 0, run.stderr
    assert "could not write" in run.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_kill_in_the_middle_of_saving_leaves_no_folder(tmp_path):
    run = run_python(KILLED, str(tmp_path / "out"))
    assert run.returncode == -9
    assert not (tmp_path / "out").exists()
    result = kprune.prune(tiny.tiny_model(), BATCHES, reduction=0.5)
    save(result, tmp_path / "out")  # and does not stand in the way of the next run
    assert Source(tmp_path / "out").load().num_parameters() == result.parameters[1]


def test_a_card_says_what_was_done(pruned, tmp_path):
    folder = save(pruned, tmp_path / "small")
    card = (folder / "README.md").read_text()
    assert f"{pruned.reduction:.1%} of the encoder's FLOPs were removed" in card
    assert 'BertForSequenceClassification.from_pretrained("small")' in card
    assert all(f"| {s.layer} | {s.kind} | {len(s.kept)} of {s.units} |" in card for s in pruned.steps)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(kprune.KpruneError, match="holds no model"):
        Source(tmp_path)


def test_pickled_weights_are_refused(tmp_path):
    model = tiny.tiny_model()
    model.config.architectures = ["BertForSequenceClassification"]
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(kprune.KpruneError, match="cannot load"):
        Source(tmp_path).load()


def test_modules_may_not_lead_out_of_their_folder(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/modules.json").write_text('[{"path": "../../etc", "type": "sentence_transformers.models.Pooling"}]')
    with pytest.raises(kprune.KpruneError, match="outside its own"):
        Source(tmp_path / "in")


@pytest.mark.parametrize("name", ["../stolen.safetensors", "/etc/passwd", "x.bin", "..", "", 7, None])
def test_an_index_may_not_lead_out_of_its_folder(name, tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path / "in")
    (tmp_path / "in/model.safetensors").rename(tmp_path / "stolen.safetensors")
    index = {"metadata": {}, "weight_map": {"classifier.weight": name}}
    (tmp_path / "in/model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadCheckpoint, match=r"index.json (names the file|has no map of weights)"):
        Source(tmp_path / "in").load()


def test_weights_in_several_files_are_read(tmp_path):
    model = tiny.tiny_model()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert not (tmp_path / "model.safetensors").exists()
    batch = tiny.batched(tiny.texts(4))[0]
    assert tiny.same_outputs(Source(tmp_path).load().eval(), model, batch)


def test_layers_without_weights_are_refused_before_they_are_built(tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10**9}))
    with pytest.raises(BadCheckpoint, match=r"config.json tells of 1000000000 layers, and there are weights of 3"):
        Source(tmp_path).load()


def test_a_name_is_no_layer(tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({**weights, "bert.encoder.layer.19999.x": torch.zeros(1)}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 20_000}))
    with pytest.raises(BadCheckpoint, match=r"tells of 20000 layers, and there are weights of 4"):
        Source(tmp_path).load()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_labels": 2**40}, r"tells of 1099511627776 labels, and no weight is that wide"),
        ({"transformers_weights": "evil.safetensors.index.json"}, "names weights of its own"),
        ({"vocab_size": 2**40}, r"embeddings.weight has shape \(99, 32\) in the weights and \(1099511627776, 32\)"),
        ({"intermediate_size": 2**30}, r"dense.weight has shape \(48, 32\) in the weights"),
    ],
)
def test_a_hostile_config_is_refused_before_weights_are_read(change, message, tmp_path, capfd):
    tiny.tiny_model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("id2label", None), config.pop("label2id", None)
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(BadCheckpoint, match=message):
        Source(tmp_path).load()
    assert "Loading weights" not in capfd.readouterr().err


def test_code_in_a_folder_is_never_run(tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'proof')!r}, 'w')\nclass C: pass\n")
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModel": "evil.C"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["evil.C", None]}}))
    for load in (lambda: Source(tmp_path).load(), lambda: Source(tmp_path).load_tokenizer()):
        with pytest.raises(kprune.KpruneError, match="cannot load"):
            load()
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "cls+max"),
    ],
)
def test_pooling_is_read_from_a_sentence_transformers_folder(config, expected, tmp_path):
    tiny.tiny_model("bert", "embedding").save_pretrained(tmp_path / "0_Transformer")
    modules = [
        {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps(config))
    source = Source(tmp_path)
    assert source.pooling == expected
    pruned = kprune.prune(source.load(), BATCHES, reduction=0.5)
    folder = save(pruned, tmp_path / "out", source=source)
    assert record_of(AutoConfig.from_pretrained(folder / "0_Transformer")) is not None
    assert json.loads((folder / "1_Pooling/config.json").read_text()) == config


@pytest.mark.real
def test_sentence_transformers_and_pipelines_read_it(tmp_path):
    from sentence_transformers import SentenceTransformer
    from transformers import pipeline

    source = embedded_model()
    model, tokenizer = source.load(), source.load_tokenizer()
    sentences = ["A man is playing a guitar.", "The stock market fell sharply today.", "Someone plays music."]
    batches = [tokenizer(sentences, padding=True, return_tensors="pt")]
    pruned = kprune.prune(model, batches, reduction=0.3, pooling=source.pooling, ridge=1e-2)
    folder = save(pruned, tmp_path / "small", source=source)
    embedder = SentenceTransformer(str(folder))
    embeddings = torch.tensor(embedder.encode(sentences))
    assert embedder.max_seq_length == source.max_length == 256
    from kprune.outputs import pool

    with torch.no_grad():
        ours = pool(pruned.model(**batches[0]).last_hidden_state, batches[0]["attention_mask"].bool(), source.pooling)
    torch.testing.assert_close(embeddings, ours, rtol=1e-3, atol=1e-4)
    features = pipeline("feature-extraction", model=str(folder))(sentences[0], return_tensors=True)
    with torch.no_grad():
        expected = pruned.model(**tokenizer(sentences[0], return_tensors="pt")).last_hidden_state
    torch.testing.assert_close(features, expected, rtol=1e-3, atol=1e-4)
    for name in ("tokenizer.json", "vocab.txt", "1_Pooling/config.json", "modules.json"):
        assert (folder / name).read_bytes() == (source.folder / name).read_bytes()


def test_what_a_killed_run_left_is_cleared_away_by_the_next(tmp_path):
    folder = tmp_path / "out [1]"
    writer = (
        "import sys, time; from pathlib import Path; from kprune.store import whole_or_absent\n"
        "with whole_or_absent(Path(sys.argv[1])) as partial:\n"
        "    (partial / 'half').write_text('x'); print('writing', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", writer, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    left = [path.name for path in tmp_path.iterdir()]
    assert left == [f".out [1].{process.pid}.partial"]
    tidy(folder)
    assert [path.name for path in tmp_path.iterdir()] == left  # it is at work
    process.kill()
    process.communicate()
    tidy(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_about_to_be_replaced_gets_its_name_back(tmp_path):
    retired = tmp_path / ".out.123.retired"
    retired.mkdir()
    (retired / "config.json").write_text("old")
    tidy(tmp_path / "out")
    assert (tmp_path / "out" / "config.json").read_text() == "old"
    retired.mkdir()  # killed after the new one had its name
    tidy(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    other = tmp_path / ".out.v2.123.retired"  # of another folder, out.v2
    other.mkdir()
    tidy(tmp_path / "out")
    assert other.exists()
