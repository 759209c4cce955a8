"""Files of the hub layout beside the graphs: what is written, and which models are refused."""

import json

import hub_sources
import pytest
import tiny
import torch
import zoo
from sentence_transformers import CrossEncoder
from sentence_transformers.sentence_transformer.modules import Pooling
from server_rules import broken_rules
from task_data import load_tokenizer, word_tokenizer
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    T5Config,
    T5ForConditionalGeneration,
)

from kprune.checkpoints.self_contained import make_self_contained
from kprune.checkpoints.source import Source
from kprune.deploy.exporter import write_side_files
from kprune.deploy.hub_folder import Served, config_entries, describe_served, require_servable, write_files
from kprune.deploy.hub_modules import POOLING_FLAGS, pooling_config
from kprune.deploy.hub_tokenizer import padded, require_same_tokens, write_tokenizer
from kprune.errors import KpruneError, UnsupportedModel


@pytest.fixture
def source(tmp_path) -> Source:
    """A folder of transformers with a config only; tests pass other models with it."""
    hub_sources.write_json(tmp_path / "config.json", {"model_type": "bert"})
    return Source(tmp_path, name="mine")


def served(source, model, **changes) -> Served:
    values = {"tokenizer": load_tokenizer(), "pooling": None, "max_length": 48}
    return Served(source, model, **{**values, **changes})


@pytest.mark.parametrize(
    ("family", "kind", "sentence"),
    [
        ("vit", None, "the hub layout is for models of text, and mine reads pixel_values; use --layout plain."),
        ("llama", "causal language model", "mine generates text, and its graph has no cache"),
    ],
)
def test_models_that_servers_cannot_run_are_refused(family, kind, sentence, source):
    with pytest.raises(UnsupportedModel, match=sentence):
        require_servable(source, zoo.build(family, kind))


def test_an_encoder_with_a_decoder_is_refused(source):
    config = T5Config(vocab_size=99, **zoo.T5)
    model = T5ForConditionalGeneration(config)
    with pytest.raises(UnsupportedModel, match="mine has a decoder, and graphs hold only the encoder"):
        require_servable(source, model)


def test_modules_that_change_embeddings_are_refused(source):
    modules = [("", "sentence_transformers.models.Transformer"), ("2_Dense", "sentence_transformers.models.Dense")]
    hub_sources.write_json(source.folder / "modules.json", [{"path": path, "type": kind} for path, kind in modules])
    with pytest.raises(UnsupportedModel, match=r"mine has the module 2_Dense \(Dense\), which graphs do not hold"):
        require_servable(Source(source.folder, name="mine"), tiny.tiny_model("bert", "embedding"))


@pytest.mark.parametrize("family", [*tiny.CONFIGS, "gpt2", "t5", "deberta-v2", "modernbert"])
def test_sizes_have_the_names_that_servers_read_and_the_config_is_the_same(family, source):
    kind = "embedding" if family == "t5" else "classification"
    model = zoo.build(family, kind)
    written = {**json.loads(model.config.to_json_string(use_diff=False)), **config_entries(served(source, model))}
    names = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "max_position_embeddings": "n_positions"}
    for name, alias in names.items():
        assert (name in written) != (alias in written), name
    assert written.get("hidden_size", written.get("n_embd")) == model.config.hidden_size
    assert written.get("num_hidden_layers", written.get("n_layer")) == 3
    hub_sources.write_json(source.folder / "config.json", written)
    read = AutoConfig.from_pretrained(source.folder)
    before = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    del before["_name_or_path"]
    assert {name: read.to_dict().get(name) for name in before} == before


SERVED = [
    (family, next(kind for kind in entry.kinds if kind != "causal language model"))
    for family, entry in zoo.ZOO.items()
    if "/" not in family and not {"image_size", "conv_dim", "num_mel_bins"} & set(entry.config)
] + [("distilbert", kind) for kind in zoo.TEXT_KINDS[1:]]


@pytest.mark.parametrize(("family", "kind"), zoo.marked(SERVED))
def test_text_embeddings_inference_parses_every_family(family, kind, tmp_path):
    tokenizer = word_tokenizer(words=60)
    padding = {"vocab_size": 70, "pad_token_id": 63} if family == "qwen2" else {}  # its tokenizer adds that token
    source = hub_sources.write_model(tmp_path / "source", zoo.build(family, kind, **padding), tokenizer)
    (tmp_path / "served").mkdir()
    write_files(describe_served(source, source.load()), tmp_path / "served", ["input_ids", "attention_mask"])
    assert broken_rules(tmp_path / "served") == []


def test_labels_are_written_even_where_transformers_leaves_them_out(source):
    """Two classes without names are the default, which transformers does not write."""
    model = tiny.tiny_model("bert", "classification", num_labels=2)
    assert "id2label" not in json.loads(model.config.to_json_string())
    entries = config_entries(served(source, model))
    assert entries["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    assert entries["label2id"] == {"LABEL_0": 0, "LABEL_1": 1}
    assert entries["architectures"] == ["BertForSequenceClassification"]


@pytest.mark.parametrize("mode", list(POOLING_FLAGS))
@pytest.mark.parametrize("schema", ["old", "new"])
def test_pooling_is_read_by_the_old_schema_and_by_the_new_one(mode, schema, tmp_path):
    given = (
        {"pooling_mode": mode}
        if schema == "new"
        else {name: name == POOLING_FLAGS[mode] for name in POOLING_FLAGS.values()}
    )
    written = pooling_config(given, "mean", 32)
    assert [flag for flag in POOLING_FLAGS.values() if written[flag]] == [POOLING_FLAGS[mode]]
    hub_sources.write_json(tmp_path / "config.json", written)
    read = Pooling.load(str(tmp_path))
    assert (read.pooling_mode, read.embedding_dimension, read.include_prompt) == (mode, 32, True)


def test_a_tokenizer_truncates_and_pads_for_every_reader(tmp_path):
    tokenizer = load_tokenizer()
    before = {"max_length": 7, "tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["[X]"]}
    tokenizer.save_pretrained(tmp_path)
    hub_sources.write_json(tmp_path / "tokenizer_config.json", before)
    write_tokenizer(tokenizer, tmp_path, max_length=12, inputs=["input_ids", "attention_mask"])
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert "max_length" not in config
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["additional_special_tokens"] == ["[X]"]
    assert (config["model_max_length"], config["pad_token"]) == (12, "[PAD]")
    read = AutoTokenizer.from_pretrained(tmp_path)
    assert set(read(["a", "a b"], padding=True)) == {"input_ids", "attention_mask"}
    assert len(read("word " * 50, truncation=True)["input_ids"]) == 12
    assert json.loads((tmp_path / "special_tokens_map.json").read_text())["cls_token"] == "[CLS]"


def test_a_tokenizer_that_changes_is_noticed(tmp_path):
    word_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(KpruneError, match="the tokenizer changes when it is written"):
        require_same_tokens(load_tokenizer(), tmp_path, ["A text."], max_length=12)


def test_the_models_padding_token_or_the_end_of_text_pads_and_a_tokenizer_without_both_is_refused():
    assert padded(word_tokenizer()).pad_token == "<end>"
    assert padded(word_tokenizer(), 5).pad_token == "w5"
    for number in (-1, 10**6):
        with pytest.raises(UnsupportedModel, match=f"the model pads with token {number}, and its tokenizer has"):
            padded(word_tokenizer(), number)
    with pytest.raises(UnsupportedModel, match="neither a padding token nor an end-of-text token"):
        padded(word_tokenizer(has_end=False))


def test_a_model_without_a_padding_token_is_not_changed(tmp_path):
    source = hub_sources.decoder(tmp_path / "source")
    model = source.load()
    found = describe_served(source, model)
    assert model.config.pad_token_id is None
    assert found.model.config.pad_token_id == found.tokenizer.pad_token_id
    assert next(found.model.parameters()) is next(model.parameters())


def test_a_classifier_that_looks_for_another_padding_token_is_refused(tmp_path):
    """It would take a padding token for the end of a text, and its scores would depend on the batch."""
    tokenizer = padded(word_tokenizer(words=60))
    source = hub_sources.write_model(tmp_path, zoo.build("llama", "classification"), tokenizer)
    sentence = "has the pad_token_id 1, and its tokenizer pads with token 60, .* set pad_token_id to 60 in config.json"
    with pytest.raises(UnsupportedModel, match=sentence):
        describe_served(source, source.load())
    word_tokenizer(words=60).save_pretrained(tmp_path)  # it has no padding token, so that it can pad with the model's
    assert describe_served(source, source.load()).tokenizer.pad_token_id == 1


@pytest.mark.parametrize(
    ("settings", "config", "expected"),
    [
        ({"activation_fn": "torch.nn.modules.activation.Tanh"}, {}, "Tanh"),
        ({}, {"activation_fn": "torch.nn.modules.linear.Identity"}, "Identity"),
        ({"activation_fn": "torch.nn.Identity"}, {"activation_fn": "torch.nn.Tanh"}, "Identity"),
        ({"activation_fn": "mine.Tanh"}, {}, "Sigmoid"),
        ({}, {}, "Sigmoid"),
    ],
)
def test_the_activation_is_the_one_of_cross_encoder(settings, config, expected, tmp_path):
    source = hub_sources.reranker(tmp_path)
    path = tmp_path / "config_sentence_transformers.json"
    hub_sources.write_json(path, {"model_type": "CrossEncoder", "prompts": {}, **settings})
    stored = json.loads((tmp_path / "config.json").read_text())
    hub_sources.write_json(tmp_path / "config.json", {**stored, "sentence_transformers": config})
    source = Source(tmp_path)
    assert served(source, source.load()).activation == expected
    assert type(CrossEncoder(str(tmp_path), device="cpu").activation_fn).__name__ == expected


def test_a_self_contained_folder_stays_one_and_no_config_names_a_file_that_is_absent(tmp_path, monkeypatch):
    source = hub_sources.classifier(tmp_path / "source")
    make_self_contained(source.folder)
    model = source.load()
    (tmp_path / "served").mkdir()
    write_files(describe_served(source, model), tmp_path / "served", ["input_ids", "attention_mask"])
    served = json.loads((tmp_path / "served/config.json").read_text())
    assert (served["id2label"], served["hidden_size"]) == ({"0": "bad", "1": "fair", "2": "good"}, 32)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "served", trust_remote_code=True)
    inputs = {"input_ids": torch.tensor([[2, 7, 8, 9]])}
    with torch.no_grad():
        assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    graph = tmp_path / "graph"
    graph.mkdir()
    write_side_files(source, model, graph)
    assert "auto_map" not in json.loads((graph / "config.json").read_text())
