"""`save` writes a folder that transformers and sentence-transformers read."""

import copy
import json
import multiprocessing
import os
import resource
import signal
from functools import partial

import huggingface_hub
import pytest
import tiny
import torch
from command_line import write_checkpoint
from task_data import load_tokenizer
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    pipeline,
)
from uneven_model import BATCHES, uneven_result

import kprune
from kprune.checkpoints.source import Source
from kprune.checkpoints.writer import save
from kprune.jobs.demo import embedded_model
from kprune.models.outputs import pool
from kprune.models.pruned_shape import record_of


def run_forked(function, *arguments) -> int:
    """The exit code of a function in a forked process, which need not import torch again."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def save_on_full_disk(pruned, folder, message):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # larger files fail, as on a full disk
    try:
        save(pruned, folder)
    except kprune.KpruneError as error:
        message.write_text(str(error))


def test_a_full_disk_leaves_nothing(tmp_path):
    (tmp_path / "models").mkdir()
    assert run_forked(save_on_full_disk, uneven_result(), tmp_path / "models/out", tmp_path / "message") == 0
    assert "could not write" in (tmp_path / "message").read_text()
    assert list((tmp_path / "models").iterdir()) == []


def save_and_die(pruned, folder):
    write = PreTrainedModel.save_pretrained

    def write_and_die(self, folder, **options):
        write(self, folder, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    PreTrainedModel.save_pretrained = write_and_die
    save(pruned, folder)


def test_a_kill_in_the_middle_of_saving_leaves_no_folder(tmp_path):
    result = uneven_result()
    assert run_forked(save_and_die, result, tmp_path / "out") == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert len(list(tmp_path.iterdir())) == 1  # the staging folder
    save(result, tmp_path / "out")
    assert Source(tmp_path / "out").load().num_parameters() == result.parameters[1]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


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


@pytest.fixture
def dense(tmp_path):
    """A model folder with a tokenizer, as `from_pretrained` reads it."""
    return write_checkpoint(tmp_path / "dense")


def prune_loaded(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    return kprune.prune(model, BATCHES, reduction=0.5)


def vocabulary_in(folder):
    return AutoTokenizer.from_pretrained(folder).get_vocab()


def test_the_given_tokenizer_is_saved(dense, tmp_path):
    pruned = prune_loaded(dense)
    pruned.model.config._name_or_path = ""
    folder = kprune.save(pruned, tmp_path / "small", tokenizer=load_tokenizer())
    assert vocabulary_in(folder) == load_tokenizer().get_vocab()
    text = "A text to classify."
    answer = pipeline("text-classification", model=str(folder))(text)[0]
    with torch.no_grad():
        expected = pruned.model(**load_tokenizer()(text, return_tensors="pt")).logits.softmax(-1)
    assert answer["score"] == pytest.approx(float(expected.max()), abs=1e-5)


@pytest.mark.parametrize("source", ["none", "without tokenizer"])
def test_the_tokenizer_is_found_where_the_model_was_loaded(source, dense, tmp_path, caplog):
    pruned = prune_loaded(dense)
    pruned.model.save_pretrained(tmp_path / "bare")
    options = {} if source == "none" else {"source": Source(tmp_path / "bare")}
    folder = kprune.save(pruned, tmp_path / "small", **options)
    assert vocabulary_in(folder) == load_tokenizer().get_vocab()
    assert "tokenizer" not in caplog.text


def test_the_tokenizer_of_a_cached_hub_model_is_found(dense, tmp_path, monkeypatch):
    cache = tmp_path / "models--org--name"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs/main").write_text("0123abc")
    (cache / "snapshots").mkdir()
    dense.rename(cache / "snapshots/0123abc")
    pruned = prune_loaded(cache / "snapshots/0123abc")
    pruned.model.config._name_or_path = "org/name"
    download = huggingface_hub.snapshot_download
    monkeypatch.setattr(huggingface_hub, "snapshot_download", partial(download, cache_dir=tmp_path))
    folder = kprune.save(pruned, tmp_path / "small")
    assert vocabulary_in(folder) == load_tokenizer().get_vocab()
    assert "base_model: org/name\n" in (folder / "README.md").read_text()


def test_a_missing_tokenizer_is_told_once(tmp_path, caplog):
    folder = kprune.save(uneven_result(), tmp_path / "small")
    warnings = [record.getMessage() for record in caplog.records if "tokenizer" in record.getMessage()]
    assert warnings == [f"no tokenizer was found, so {folder} cannot read text; pass save(…, tokenizer=tokenizer)"]


def test_a_tokenizer_that_does_not_fit_is_not_saved(dense, tmp_path, caplog):
    with pytest.raises(kprune.KpruneError, match=r"`tokenizer` \(\w+\) has a token number 30521, and the model 99 emb"):
        kprune.save(uneven_result(), tmp_path / "small", tokenizer=load_tokenizer())
    assert not (tmp_path / "small").exists()
    pruned = copy.deepcopy(uneven_result())
    pruned.model.config._name_or_path = str(dense)
    folder = kprune.save(pruned, tmp_path / "small")
    assert not (folder / "tokenizer.json").exists()
    assert "has a token number 30521" in caplog.text


@pytest.mark.parametrize("other", ["a-model-name", 7])
def test_what_is_no_tokenizer_is_not_saved(other, tmp_path):
    with pytest.raises(kprune.KpruneError, match=r"the tokenizer has the type \w+; pass a tokenizer"):
        kprune.save(uneven_result(), tmp_path / "small", tokenizer=other)
    assert list(tmp_path.iterdir()) == []


def test_a_sentence_transformers_folder_that_is_not_named_gets_a_warning(tmp_path, caplog):
    write_checkpoint(tmp_path / "dense", "embedding")
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{path or 'Transformer'}"} for path in ("", "Pooling")
    ]
    (tmp_path / "dense/modules.json").write_text(json.dumps(modules))
    (tmp_path / "dense/Pooling").mkdir()
    (tmp_path / "dense/Pooling/config.json").write_text('{"pooling_mode": "cls"}')
    pruned = kprune.prune(AutoModel.from_pretrained(tmp_path / "dense"), BATCHES, reduction=0.5)
    kprune.save(pruned, tmp_path / "named", source=Source(tmp_path / "dense"))
    assert "has another pooling: prune(…, pooling='cls') measures it" in caplog.text
    assert "modules of sentence-transformers" not in caplog.text
    caplog.clear()
    kprune.save(pruned, tmp_path / "small")
    assert "is saved without the modules of sentence-transformers; pass save(…, source='" in caplog.text
    assert "has another pooling" in caplog.text
    caplog.clear()
    pruned = kprune.prune(AutoModel.from_pretrained(tmp_path / "dense"), BATCHES, reduction=0.5, pooling="cls")
    kprune.save(pruned, tmp_path / "right", source=Source(tmp_path / "dense"))
    assert not caplog.text


def test_only_results_and_folders_are_saved(dense, tmp_path):
    pruned = prune_loaded(dense)
    with pytest.raises(kprune.KpruneError, match=r"save takes the result of kprune\.prune, not a BertForSequence"):
        kprune.save(pruned.model, tmp_path / "small")
    with pytest.raises(kprune.KpruneError, match="a model folder is needed, not a BertForSequenceClassification; pass"):
        kprune.save(pruned, tmp_path / "small", source=pruned.model)
    files = [
        sorted(path.name for path in kprune.save(pruned, tmp_path / name, source=source).iterdir())
        for name, source in {"a": dense, "b": str(dense), "c": Source(dense)}.items()
    ]
    assert files[0] == files[1] == files[2]


@pytest.mark.real
def test_sentence_transformers_and_pipelines_read_it(tmp_path):
    from sentence_transformers import SentenceTransformer

    source = embedded_model()
    model, tokenizer = source.load(), source.load_tokenizer()
    sentences = ["A man is playing a guitar.", "The stock market fell sharply today.", "Someone plays music."]
    batches = [tokenizer(sentences, padding=True, return_tensors="pt")]
    pruned = kprune.prune(model, batches, reduction=0.3, pooling=source.pooling, ridge=1e-2)
    folder = save(pruned, tmp_path / "small", source=source)
    embedder = SentenceTransformer(str(folder))
    embeddings = torch.tensor(embedder.encode(sentences))
    assert embedder.max_seq_length == source.max_length == 256
    with torch.no_grad():
        ours = pool(pruned.model(**batches[0]).last_hidden_state, batches[0]["attention_mask"].bool(), source.pooling)
    torch.testing.assert_close(embeddings, ours, rtol=1e-3, atol=1e-4)
    features = pipeline("feature-extraction", model=str(folder))(sentences[0], return_tensors=True)
    with torch.no_grad():
        expected = pruned.model(**tokenizer(sentences[0], return_tensors="pt")).last_hidden_state
    torch.testing.assert_close(features, expected, rtol=1e-3, atol=1e-4)
    for name in ("tokenizer.json", "vocab.txt", "1_Pooling/config.json", "modules.json"):
        assert (folder / name).read_bytes() == (source.folder / name).read_bytes()
