"""A model folder: find it, check it, load it, copy its side files."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, cast

import huggingface_hub
import torch
import transformers
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from transformers import MODEL_MAPPING, AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel

from kprune.checkpoints import validation
from kprune.checkpoints.files import GRAPH_FILES, PICKLE_PATTERNS, copy_side_files, read_json
from kprune.checkpoints.names import hub_name, short_name
from kprune.checkpoints.tokenizer_checks import require_fit, require_tokenizer
from kprune.errors import BadCheckpoint, KpruneError
from kprune.models.families import family_of
from kprune.models.outputs import POOLINGS_OF
from kprune.models.pruned_shape import apply, record_of
from kprune.runtime.memory import is_out_of_memory

READ_MODULES = {"Transformer", "MLMTransformer", "Pooling", "Normalize"}
"""Modules of sentence-transformers that kprune runs itself; embeddings are compared after normalisation."""

log = logging.getLogger(__name__)


def fetch(name: str) -> Path:
    """The local folder `name`, or else a download of the hub model `name`."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise BadCheckpoint(f"{name} is a file, not a model folder; pass the folder that holds config.json.")
    wanted = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
    except HFValidationError as error:
        raise BadCheckpoint(f"there is no folder {name}, and it is not a hub name either; check the path.") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise BadCheckpoint(
            f"there is no folder {name}, and the hub did not return a model of that name "
            f"({type(error).__name__}); check the spelling and the network, or pass a folder."
        ) from error


class Source:
    """A model folder, of transformers or of sentence-transformers.

    In a sentence-transformers folder, the encoder may be in a subfolder.
    """

    def __init__(self, folder: str | Path, name: str | None = None) -> None:
        self.folder = Path(folder)
        self.name = name or self.folder.resolve().name
        self.modules = self._read_modules()
        encoders = [
            entry["path"] for entry in self.modules if entry["type"].split(".")[-1] in ("Transformer", "MLMTransformer")
        ]
        self.encoder_path: str = encoders[0] if encoders else ""
        if not (self.encoder / "config.json").is_file():
            raise BadCheckpoint(f"{self.encoder} holds no model (no config.json); pass the folder of a checkpoint.")

    @classmethod
    def of(cls, value: Any) -> Source:
        """The value itself if it is a Source; a folder's name or path is read as one."""
        if not isinstance(value, Source | str | Path):
            raise KpruneError(f"a model folder is needed, not a {type(value).__name__}; pass one that was saved.")
        return value if isinstance(value, Source) else cls(value)

    @property
    def encoder(self) -> Path:
        """The folder with the encoder's config and weights."""
        return self.folder / self.encoder_path

    @property
    def is_sentence_transformer(self) -> bool:
        return bool(self.modules)

    @property
    def sentence_class(self) -> str | None:
        """The class of sentence-transformers that loads the folder; None for a folder of transformers."""
        if not self.is_sentence_transformer:  # CrossEncoders once had no modules
            is_reranker = isinstance(read_json(self.folder / "config.json").get("sentence_transformers"), dict)
            return "CrossEncoder" if is_reranker else None
        named = read_json(self.folder / "config_sentence_transformers.json").get("model_type")
        if named in ("CrossEncoder", "SparseEncoder", "SentenceTransformer"):
            return str(named)
        return "CrossEncoder" if self._transformer_task() == "sequence-classification" else "SentenceTransformer"

    def warn_of_unread_modules(self) -> None:
        """Log the modules of sentence-transformers that kprune does not run: embeddings are measured before them."""
        kinds = {entry["path"]: entry["type"].split(".")[-1] for entry in self.modules}
        unread = [f"{path} ({kind})" for path, kind in kinds.items() if kind not in READ_MODULES]
        if unread and self.sentence_class == "SentenceTransformer":
            log.warning(
                "embeddings of %s are measured before %s: these modules are kept, but not run; check the whole model "
                "with sentence-transformers",
                self.title,
                ", ".join(unread),
            )

    @property
    def hub_name(self) -> str | None:
        """The model's name on the hub, if it is from there."""
        return hub_name(str(self.folder.absolute())) or (hub_name(self.name) if "/" in self.name else None)

    @property
    def title(self) -> str:
        """The model's name without the path of a local folder."""
        return self.hub_name or short_name(self.name)

    def _read_modules(self) -> list[dict[str, str]]:
        """Entries of modules.json, whose paths must stay inside the folder."""
        file = self.folder / "modules.json"
        if not file.is_file():
            return []
        try:
            entries = [{"path": str(e["path"]), "type": str(e["type"])} for e in json.loads(file.read_text("utf-8"))]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadCheckpoint(f"{file} is not a list of modules ({error}); restore it.") from error
        root = self.folder.resolve()
        for entry in entries:
            if not (root / entry["path"]).resolve().is_relative_to(root):
                raise BadCheckpoint(f"{file} names the folder {entry['path']!r}, which is outside its own; restore it.")
        return entries

    @property
    def pooling(self) -> str:
        """The pooling of the sentence-transformers folder; the model type's, or else mean, if it names none."""
        config = self.pooling_config()
        if "pooling_mode" in config:
            return str(config["pooling_mode"])
        flags = [name for name, on in config.items() if name.startswith("pooling_mode_") and on]
        modes = [flag.removeprefix("pooling_mode_").split("_")[0] for flag in flags]
        model_type = read_json(self.encoder / "config.json").get("model_type")
        return "+".join(modes) or POOLINGS_OF.get(str(model_type), "mean")

    def pooling_config(self) -> dict[str, Any]:
        """The config of the Pooling module; empty if there is none."""
        paths = [entry["path"] for entry in self.modules if entry["type"].endswith("Pooling")]
        return read_json(self.folder / paths[0] / "config.json") if paths else {}

    @property
    def prompt(self) -> str:
        """The text that sentence-transformers puts before every text by default; empty if the folder names none."""
        config = read_json(self.folder / "config_sentence_transformers.json")
        name, prompts = config.get("default_prompt_name"), config.get("prompts")
        if name is None:
            return ""
        prompt = prompts.get(name) if isinstance(prompts, dict) else None
        if not isinstance(prompt, str):
            raise BadCheckpoint(
                f"{self.folder}/config_sentence_transformers.json has the default prompt {name!r:.60}, which is none "
                "of its prompts; correct default_prompt_name."
            )
        if prompt and self.pooling_config().get("include_prompt") is False:
            raise BadCheckpoint(
                f"{self.folder} pools its tokens without those of its default prompt (include_prompt is false), which "
                "kprune cannot do; set default_prompt_name to null."
            )
        return prompt

    @property
    def max_length(self) -> int | None:
        """The length at which sentence-transformers truncates; None if the folder sets none."""
        length = read_json(self.encoder / "sentence_bert_config.json").get("max_seq_length")
        return length if isinstance(length, int) and length > 0 else None

    def load_config(self) -> PreTrainedConfig:
        with reading(self.encoder):
            self._require_labels()
            return cast(PreTrainedConfig, AutoConfig.from_pretrained(self.encoder, trust_remote_code=False))

    def load(self) -> PreTrainedModel:
        """The model in its stored dtype, with the head that its config names."""
        self.require_checkpoint()
        config = self.load_config()
        with reading(self.encoder):
            record_of(config)
            self.require_layers(config)  # raises for an unsupported family, too, before any weight is read
            self._require_shapes(self.class_of(config), config)
        return self.load_weights(config)

    def load_weights(self, config: PreTrainedConfig) -> PreTrainedModel:
        """The model, which need not have a row; missing weights are an error."""
        with reading(self.encoder):
            model, info = cast(
                tuple[PreTrainedModel, dict[str, Any]],
                self.class_of(config).from_pretrained(self.encoder, use_safetensors=True, output_loading_info=True),
            )
        # Embedding models often have no pooler weights, and token pooling does not use them.
        missing = sorted(name for name in info["missing_keys"] if ".pooler." not in f".{name}")
        if missing:
            raise BadCheckpoint(
                f"{self.encoder} lacks weights of a {type(model).__name__}, first {missing[0]}; "
                "random weights cannot be pruned: pass a fine-tuned checkpoint."
            )
        return model

    def load_tokenizer(self) -> Any:
        """The tokenizer, which must be in the folder and fit the model's vocabulary."""
        require_tokenizer(self.encoder)
        with reading(self.encoder):
            tokenizer = AutoTokenizer.from_pretrained(self.encoder, trust_remote_code=False)
        require_fit(tokenizer, self.load_config(), str(self.encoder))
        return tokenizer

    def _transformer_task(self) -> str:
        return str(read_json(self.encoder / "sentence_bert_config.json").get("transformer_task", "feature-extraction"))

    def class_of(self, config: PreTrainedConfig) -> type[PreTrainedModel]:
        """The model class that the config names, or the bare encoder's class."""
        name = config.architectures[0] if config.architectures else ""
        is_embedder = self.is_sentence_transformer and self._transformer_task() == "feature-extraction"
        if not name or (is_embedder and not name.endswith("EncoderModel")):
            return cast(type[PreTrainedModel], MODEL_MAPPING[type(config)])
        found = getattr(transformers, name, None)
        if not (isinstance(found, type) and issubclass(found, PreTrainedModel)):
            raise BadCheckpoint(
                f"{self.encoder} holds a {name!r}, which transformers does not have, and kprune runs no custom code; "
                "pass a model of a transformers class."
            )
        return found

    def copy_to(self, target: Path) -> None:
        """Copy everything but the weights: tokenizer, labels, sentence-transformers modules."""
        copy_side_files(self.encoder, target / self.encoder_path)
        if self.is_sentence_transformer:
            copy_side_files(self.folder, target)
        for entry in self.modules:
            if entry["path"] not in ("", self.encoder_path) and (self.folder / entry["path"]).is_dir():
                shutil.copytree(
                    self.folder / entry["path"],
                    target / entry["path"],
                    dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns(*PICKLE_PATTERNS),
                )

    def require_layers(self, config: PreTrainedConfig) -> None:
        """Raise if the config declares another number of layers than the weights hold, before any layer is built."""
        path = re.escape(family_of(config).layers)
        shapes = self._shapes()
        if validation.renames_weights(config) and not any(re.search(path, name) for name in shapes):
            path = r"(?:layers?|blocks?)"
        layer = re.compile(rf"(?:^|\.){path}\.(\d{{1,9}})\.")
        stored = {match[1] for match in map(layer.search, shapes) if match}
        if shapes and config.num_hidden_layers != len(stored):
            raise BadCheckpoint(
                f"{self.encoder}/config.json declares {config.num_hidden_layers} layers, and the weights hold "
                f"{len(stored)}; restore the whole folder."
            )

    def _require_labels(self) -> None:
        """Raise if the config declares more labels than any weight is wide, before transformers names each label."""
        labels = read_json(self.encoder / "config.json").get("num_labels")
        widest = max(chain.from_iterable(self._shapes().values()), default=None)
        if isinstance(labels, int) and widest is not None and labels > widest:
            raise BadCheckpoint(
                f"{self.encoder}/config.json declares {labels} labels, and no weight is that wide; restore the folder."
            )

    def require_checkpoint(self) -> None:
        """Raise if the folder holds an exported graph in the place of weights."""
        is_graph = any((self.encoder / name).is_file() for name in GRAPH_FILES)
        if is_graph and not any(self.encoder.glob("*.safetensors")):
            raise BadCheckpoint(
                f"{self.folder} holds a graph, not a checkpoint; pass the folder that it was exported from."
            )

    def require_weights(self, config: PreTrainedConfig) -> None:
        """Raise if weights are missing, or are another model's; reads only their headers."""
        absent = [file for file in self.weights_files() if not file.is_file()]
        if absent:
            raise BadCheckpoint(f"the weights {absent[0]} are missing; restore or download the folder again.")
        self.require_layers(config)
        skeleton = self._require_shapes(self.class_of(config), config)
        if record_of(config) is not None:
            validation.require_same_layers(skeleton, self._shapes(), "the pruning record")
        validation.require_complete(skeleton, self._shapes())

    def _require_shapes(self, loader: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
        """Raise if stored weights differ in shape from what the config declares; returns a model on the meta device."""
        record = record_of(config)
        with torch.device("meta"):
            skeleton = loader(config)
        if record is not None:
            apply(record, skeleton)
        validation.require_same_shapes(skeleton, self._shapes(), "config.json")
        return skeleton

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the stored weights; empty if there are none."""
        return validation.tensor_shapes([file for file in self.weights_files() if file.is_file()])

    def weights_files(self) -> list[Path]:
        """The files with the weights, which must be in the encoder's folder."""
        if read_json(self.encoder / "config.json").get("transformers_weights") is not None:
            raise BadCheckpoint(
                f"{self.encoder}/config.json names other weights (transformers_weights), and kprune reads only "
                "model.safetensors; rename them."
            )
        index = self.encoder / "model.safetensors.index.json"
        if (self.encoder / "model.safetensors").exists() or not index.exists():
            return [self.encoder / "model.safetensors"]
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise BadCheckpoint(f"{index} has no map from weights to files; restore it.")
        for name in names.values():
            if not name.endswith(".safetensors") or Path(name).name != name:
                raise BadCheckpoint(
                    f"{index} names the file {name!r:.80}, which is not a safetensors file in the same folder; "
                    "restore it."
                )
        return [self.encoder / name for name in sorted(set(names.values()))]


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn any error of transformers into one sentence that names the folder."""
    try:
        yield
    except KpruneError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # An unexpected value in a config can raise any exception in transformers.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadCheckpoint(
            f"cannot load {folder}: {reason.rstrip('.')}; restore or download the folder again."
        ) from error
