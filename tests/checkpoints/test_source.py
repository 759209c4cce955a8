"""Model folders are found, checked before anything is built, and loaded."""

import json

import pytest
import tiny
import torch
import zoo
from safetensors.torch import load_file, save_file
from uneven_model import change_config

import kprune
from kprune.checkpoints.source import Source
from kprune.errors import BadCheckpoint


def test_a_checkpoint_without_its_head_is_refused(tmp_path):
    tiny.tiny_model("bert", "embedding").save_pretrained(tmp_path)
    change_config(tmp_path, architectures=["BertForSequenceClassification"])
    with pytest.raises(kprune.KpruneError, match="lacks weights of a BertForSequenceClassification, first classifier"):
        Source(tmp_path).load()


def test_a_class_that_transformers_does_not_have_is_refused(tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path)
    change_config(tmp_path, architectures=["MyOwnBert"])
    with pytest.raises(kprune.KpruneError, match="holds a 'MyOwnBert', which transformers does not have"):
        Source(tmp_path).load()


def test_a_folder_may_be_a_string(tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path / "dense")
    source = Source(str(tmp_path / "dense"))
    assert source.folder == tmp_path / "dense"
    assert source.name == "dense"
    assert source.load().num_parameters() == tiny.tiny_model().num_parameters()


def test_more_layers_than_the_config_declares_are_refused(tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path)
    change_config(tmp_path, num_hidden_layers=2)
    with pytest.raises(BadCheckpoint, match="declares 2 layers, and the weights hold 3"):
        Source(tmp_path).load()


@pytest.mark.parametrize("library", ["sentence-transformers 6", "sentence-transformers 4", "no model type"])
def test_a_cross_encoder_is_known_by_its_files(library, tmp_path):
    tiny.tiny_model("bert", "regression").save_pretrained(tmp_path)
    assert Source(tmp_path).sentence_class is None
    if library == "sentence-transformers 4":  # a plain folder with an entry in its config
        change_config(tmp_path, sentence_transformers={"version": "4.0.0"})
    else:
        (tmp_path / "modules.json").write_text('[{"path": "", "type": "sentence_transformers.models.Transformer"}]')
        assert Source(tmp_path).sentence_class == "SentenceTransformer"
        if library == "no model type":
            (tmp_path / "sentence_bert_config.json").write_text('{"transformer_task": "sequence-classification"}')
        else:
            (tmp_path / "config_sentence_transformers.json").write_text('{"model_type": "CrossEncoder"}')
    assert Source(tmp_path).sentence_class == "CrossEncoder"


def test_a_cross_encoder_folder_keeps_its_head(tmp_path):
    tiny.tiny_model("bert", "regression").save_pretrained(tmp_path)
    modules = [{"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "sentence_bert_config.json").write_text('{"transformer_task": "sequence-classification"}')
    assert type(Source(tmp_path).load()).__name__ == "BertForSequenceClassification"


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
    with pytest.raises(kprune.KpruneError, match="which is outside its own"):
        Source(tmp_path / "in")


@pytest.mark.parametrize("name", ["../stolen.safetensors", "/etc/passwd", "x.bin", "..", "", 7, None])
def test_an_index_may_not_lead_out_of_its_folder(name, tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path / "in")
    (tmp_path / "in/model.safetensors").rename(tmp_path / "stolen.safetensors")
    index = {"metadata": {}, "weight_map": {"classifier.weight": name}}
    (tmp_path / "in/model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadCheckpoint, match=r"index.json (names the file|has no map from weights)"):
        Source(tmp_path / "in").load()


def test_weights_in_several_files_are_read(tmp_path):
    model = tiny.tiny_model()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert not (tmp_path / "model.safetensors").exists()
    batch = tiny.batched(tiny.texts(4))[0]
    assert tiny.same_outputs(Source(tmp_path).load().eval(), model, batch)


def test_layers_without_weights_are_refused_before_they_are_built(tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path)
    change_config(tmp_path, num_hidden_layers=10**9)
    with pytest.raises(BadCheckpoint, match=r"config.json declares 1000000000 layers, and the weights hold 3"):
        Source(tmp_path).load()


def test_a_name_is_no_layer(tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({**weights, "bert.encoder.layer.19999.x": torch.zeros(1)}, tmp_path / "model.safetensors")
    change_config(tmp_path, num_hidden_layers=20_000)
    with pytest.raises(BadCheckpoint, match=r"declares 20000 layers, and the weights hold 4"):
        Source(tmp_path).load()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_labels": 2**40}, r"declares 1099511627776 labels, and no weight is that wide"),
        ({"transformers_weights": "evil.safetensors.index.json"}, "names other weights"),
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
    (tmp_path / "vocab.txt").write_text("[UNK]")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["evil.C", None]}}))
    for load in (lambda: Source(tmp_path).load(), lambda: Source(tmp_path).load_tokenizer()):
        with pytest.raises(kprune.KpruneError, match="cannot load"):
            load()
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize(("kind", "is_named"), [("Normalize", False), ("Dense", True)])
def test_modules_after_the_pooling_that_are_not_run_are_named(kind, is_named, tmp_path, caplog):
    tiny.tiny_model("bert", "embedding").save_pretrained(tmp_path)
    names = {"": "Transformer", "1_Pooling": "Pooling", f"2_{kind}": kind}
    modules = [{"path": path, "type": f"sentence_transformers.models.{name}"} for path, name in names.items()]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    Source(tmp_path).warn_of_unread_modules()
    assert ("measured before 2_Dense (Dense)" in caplog.text) == is_named


def write_prompts(folder, *, include_prompt=True, **prompts):
    tiny.tiny_model("bert", "embedding").save_pretrained(folder)
    (folder / "modules.json").write_text(
        '[{"path": "", "type": "sentence_transformers.models.Transformer"},'
        ' {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]'
    )
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"include_prompt": include_prompt}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return Source(folder)


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ({}, ""),
        ({"prompts": {"query": "query: "}, "default_prompt_name": None}, ""),
        ({"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query"}, "query: "),
    ],
)
def test_the_default_prompt_is_that_of_sentence_transformers(prompts, expected, tmp_path):
    assert write_prompts(tmp_path, **prompts).prompt == expected


def test_a_default_prompt_that_is_not_there_is_refused(tmp_path):
    source = write_prompts(tmp_path, prompts={"query": "query: "}, default_prompt_name="passage")
    with pytest.raises(BadCheckpoint, match="has the default prompt 'passage', which is none of its prompts"):
        _ = source.prompt


def test_pooling_without_the_prompt_is_refused(tmp_path):
    source = write_prompts(tmp_path, include_prompt=False, prompts={"q": "query: "}, default_prompt_name="q")
    with pytest.raises(BadCheckpoint, match=r"pools its tokens without those of its default prompt"):
        _ = source.prompt


@pytest.mark.parametrize("name", ["model.onnx", "openvino_model.xml"])
def test_an_exported_graph_is_not_a_checkpoint(name, tmp_path):
    tiny.tiny_model().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / name)
    with pytest.raises(BadCheckpoint, match="holds a graph, not a checkpoint; pass the folder that it was exported"):
        Source(tmp_path).load()


def test_a_sentence_transformers_folder_may_hold_an_encoder_of_its_own_class(tmp_path):
    """sentence-t5: the config's type has a decoder, and the folder does not."""
    zoo.build("t5").save_pretrained(tmp_path)
    modules = [("", "sentence_transformers.models.Transformer"), ("1_Pooling", "sentence_transformers.models.Pooling")]
    (tmp_path / "modules.json").write_text(json.dumps([{"path": path, "type": kind} for path, kind in modules]))
    assert type(Source(tmp_path).load()).__name__ == "T5EncoderModel"
