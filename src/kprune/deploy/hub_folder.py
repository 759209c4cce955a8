"""The hub layout: config, tokenizer, modules and weights at the folder's root, where servers look for them."""

from __future__ import annotations

import copy
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from kprune.checkpoints.files import copy_side_files, read_json, write_json
from kprune.checkpoints.self_contained import is_self_contained, update_modeling
from kprune.checkpoints.source import READ_MODULES, Source
from kprune.data.calibration import longest_input
from kprune.data.tasks import EMBEDDING
from kprune.deploy.hub_modules import write_modules
from kprune.deploy.hub_tokenizer import padded, write_tokenizer
from kprune.errors import UnsupportedModel
from kprune.models.families import family_of
from kprune.models.outputs import CAUSAL_LM, CLASSIFIERS, MASKED_LM, kind_of, runs_encoder_only

log = logging.getLogger(__name__)

SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
"""Names of sizes that servers read; DistilBERT's config calls the first three `dim`, `n_layers` and `n_heads`."""
OTHER_NAMES = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "max_position_embeddings": "n_positions"}
"""Names that Text Embeddings Inference reads too; it refuses a config with both names of a size."""
USUAL_LENGTH, MAX_LENGTH = 512, 10**6
"""The longest input where none is known, and a length that no model has: a tokenizer without a limit names more."""
REMEDY = "use --layout plain"
SETTINGS = "config_sentence_transformers.json"


@dataclass(frozen=True)
class Served:
    """A model as its hub folder describes it."""

    source: Source
    model: PreTrainedModel
    tokenizer: Any
    pooling: str | None
    """Pooling of an embedding model; None for all other kinds."""
    max_length: int
    """Inputs are truncated here."""

    @property
    def sentence_class(self) -> str | None:
        """The class of sentence-transformers that loads the folder: for any embedding model that it can pool, too."""
        can_pool = self.pooling not in (None, "pooler")
        return self.source.sentence_class or ("SentenceTransformer" if can_pool else None)

    @property
    def stored_dtype(self) -> str:
        """The type of the weights on disk, by the config."""
        config = read_json(self.source.encoder / "config.json")
        return str(config.get("dtype") or config.get("torch_dtype") or "float32")

    @property
    def activation(self) -> str:
        """The class of torch.nn through which CrossEncoder passes the logits; `Identity` for other models."""
        config = self.model.config
        if self.sentence_class != "CrossEncoder":
            return "Identity"
        settings = (read_json(self.source.folder / SETTINGS), getattr(config, "sentence_transformers", None) or {})
        named = [str(each.get("activation_fn")) for each in settings]
        path = next((path for path in named if path.startswith("torch.")), "")
        return path.split(".")[-1] or ("Sigmoid" if config.num_labels == 1 else "Identity")


def describe_served(source: Source, model: PreTrainedModel) -> Served:
    """How a hub folder describes a model; raises if servers could not run its graph, or would answer something else.

    A model whose config has no padding token is described as one with the tokenizer's.
    """
    require_servable(source, model)
    is_embedding = kind_of(model, pooling=source.pooling).name == EMBEDDING
    if is_embedding and not source.is_sentence_transformer:
        log.warning("%s names no pooling; the exported folder has %s pooling", source.title, source.pooling)
    pad = getattr(model.config, "pad_token_id", None)
    tokenizer = padded(source.load_tokenizer(), pad)
    if pad is None:
        model = _with_pad_token(model, tokenizer.pad_token_id)
    _require_same_padding(source, model, tokenizer.pad_token_id)
    longest = min(longest_input(tokenizer, model.config), source.max_length or MAX_LENGTH)
    length = longest if longest < MAX_LENGTH else USUAL_LENGTH
    return Served(source, model, tokenizer, source.pooling if is_embedding else None, length)


def _with_pad_token(model: PreTrainedModel, pad: int) -> PreTrainedModel:
    """A copy that shares the weights, with a config of its own: the given model stays as it is."""
    found = copy.copy(model)
    found.config = copy.deepcopy(model.config)
    found.config.pad_token_id = pad
    return found


def _require_same_padding(source: Source, model: PreTrainedModel, pad: int) -> None:
    """Raise if a classifier on a decoder, which finds a text's last token by the padding, looks for another token."""
    ours = model.config.pad_token_id
    if ours != pad and type(model).__name__.endswith(CLASSIFIERS) and family_of(model.config).has_cache:
        raise UnsupportedModel(
            f"{source.title} has the pad_token_id {ours}, and its tokenizer pads with token {pad}, so that it would "
            f"not find the last token of a padded text; set pad_token_id to {pad} in config.json."
        )


def require_servable(source: Source, model: PreTrainedModel) -> None:
    """Raise if the hub layout has no place for a model, or if servers would answer something else."""
    title, reads = source.title, family_of(model.config).inputs
    if reads != "input_ids":
        raise UnsupportedModel(f"the hub layout is for models of text, and {title} reads {reads}; {REMEDY}.")
    if runs_encoder_only(model):
        raise UnsupportedModel(
            f"{title} has a decoder, and graphs hold only the encoder, which servers do not run alone; {REMEDY}."
        )
    kind = kind_of(model, pooling=source.pooling)
    if kind is CAUSAL_LM:
        raise UnsupportedModel(
            f"{title} generates text, and its graph has no cache, which programs that generate text need; {REMEDY}."
        )
    known = {*READ_MODULES, *(["SpladePooling"] if kind is MASKED_LM else [])}
    for entry in source.modules:
        name = entry["type"].split(".")[-1]
        if name not in known:
            raise UnsupportedModel(
                f"{title} has the module {entry['path']} ({name}), which graphs do not hold, so servers would answer "
                f"something else; {REMEDY}."
            )


def write_files(served: Served, folder: Path, inputs: Sequence[str]) -> None:
    """Write everything but the graphs and the card; `inputs` are the graph's."""
    source = served.source
    for origin in dict.fromkeys((source.encoder, source.folder)):
        copy_side_files(origin, folder)
    for file in (*source.weights_files(), source.encoder / "model.safetensors.index.json"):
        if file.is_file():
            shutil.copyfile(file, folder / file.name)
    served.model.config.save_pretrained(folder)
    write_json(folder / "config.json", {**read_json(folder / "config.json"), **config_entries(served)})
    update_modeling(folder, served.model, is_wanted=is_self_contained(source))
    write_tokenizer(served.tokenizer, folder, max_length=served.max_length, inputs=inputs)
    if served.sentence_class is not None:
        write_modules(
            source,
            folder,
            sentence_class=served.sentence_class,
            pooling=served.pooling,
            max_length=served.max_length,
            width=served.model.config.hidden_size,
        )


def config_entries(served: Served) -> dict[str, Any]:
    """Entries of config.json that servers need, and that transformers leaves out or calls by another name."""
    config, name = served.model.config, type(served.model).__name__
    written, entries = config.to_dict(), dict[str, Any](architectures=[name])
    for size in SIZES:
        value = getattr(config, size, served.max_length if size == "max_position_embeddings" else None)
        if isinstance(value, int) and OTHER_NAMES.get(size) not in written:
            entries[size] = value
    if name.endswith("Classification"):
        names = {int(number): label for number, label in (config.id2label or {}).items()}
        entries["id2label"] = {str(number): label for number, label in names.items()}
        entries["label2id"] = {label: number for number, label in names.items()}
    if served.sentence_class == "CrossEncoder" and not hasattr(config, "sentence_transformers"):
        settings = read_json(served.source.folder / SETTINGS)
        if "activation_fn" in settings:  # where versions before 5.4 look for it
            entries["sentence_transformers"] = {"activation_fn": settings["activation_fn"]}
    return entries
