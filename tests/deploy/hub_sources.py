"""Small model folders of every kind that the hub layout takes, pruned unevenly, with emptied sublayers."""

import json
from pathlib import Path

import zoo
from task_data import load_decoder_tokenizer, load_tokenizer
from uneven_graphs import prune_unevenly, uneven_model

from kprune.checkpoints.source import Source
from kprune.models.canonical import to_canonical
from kprune.models.pruned_shape import describe

TEXTS = [
    "A text.",
    "Another text, which is longer.",
    "Names refer to objects, and are introduced by name binding operations.",
    "The try statement specifies exception handlers and cleanup code for a group of statements.",
]
NEW = "sentence_transformers.base.modules.transformer.Transformer"
"""Name of the encoder's module since sentence-transformers 5.4."""
NEW_POOLING = "sentence_transformers.sentence_transformer.modules.pooling.Pooling"


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write_model(folder: Path, model, tokenizer) -> Source:
    """A pruned model's folder, with its record."""
    model.config.quantization_config = describe(model, [])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Source(folder if folder.name != "0_Transformer" else folder.parent)


def encoder(family: str, kind: str, **changes: object):
    return uneven_model(family, kind, vocab_size=len(load_tokenizer()), pad_token_id=0, **changes)


def embedder(folder: Path) -> Source:
    """An encoder in a subfolder, with pooling in the new schema and no length limit but the tokenizer's."""
    modules = [("0_Transformer", NEW), ("pool", NEW_POOLING)]
    entries = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (path, kind) in enumerate(modules)]
    write_json(folder / "modules.json", entries)
    write_json(folder / "pool/config.json", {"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True})
    write_json(folder / "0_Transformer/sentence_bert_config.json", {"transformer_task": "feature-extraction"})
    return write_model(folder / "0_Transformer", encoder("bert", "embedding"), load_tokenizer())


def classifier(folder: Path) -> Source:
    names = {0: "bad", 1: "fair", 2: "good"}
    model = encoder("distilbert", "classification", id2label=names, label2id={v: k for k, v in names.items()})
    return write_model(folder, model, load_tokenizer())


def reranker(folder: Path) -> Source:
    """A CrossEncoder as sentence-transformers writes it since 5.4."""
    write_json(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": NEW}])
    settings = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity", "prompts": {}}
    write_json(folder / "config_sentence_transformers.json", settings)
    task = {"transformer_task": "sequence-classification", "module_output_name": "scores"}
    modality = {"modality_config": {"text": {"method": "forward", "method_output_name": "logits"}}}
    write_json(folder / "sentence_bert_config.json", {**task, **modality})
    tokenizer = load_tokenizer()
    source = write_model(folder, encoder("bert", "regression", num_hidden_layers=1), tokenizer)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    write_json(folder / "tokenizer_config.json", {**settings, "model_max_length": 48})
    return source


def tagger(folder: Path) -> Source:
    names = dict(enumerate(("O", "B-PER", "I-PER", "B-LOC", "I-LOC")))
    return write_model(
        folder, encoder("electra", "token classification", id2label=names, num_hidden_layers=1), load_tokenizer()
    )


def decoder(folder: Path) -> Source:
    """A decoder that embeds by its last token; its tokenizer has no padding token."""
    tokenizer = load_decoder_tokenizer()
    model = zoo.build("llama", "embedding", vocab_size=len(tokenizer), num_hidden_layers=2, pad_token_id=None)
    to_canonical(model)
    prune_unevenly(model)
    modules = [("", "sentence_transformers.models.Transformer"), ("1_Pooling", "sentence_transformers.models.Pooling")]
    entries = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (path, kind) in enumerate(modules)]
    write_json(folder / "modules.json", entries)
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True})
    return write_model(folder, model, tokenizer)


SOURCES = {each.__name__: each for each in (embedder, classifier, reranker, tagger, decoder)}
