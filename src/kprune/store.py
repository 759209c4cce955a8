"""Checkpoint folders: fetch one, load it, write one so that it is whole or absent."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, cast

import huggingface_hub
import torch
import transformers
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from transformers import MODEL_MAPPING, AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel

from kprune.card import model_card
from kprune.errors import BadCheckpoint, KpruneError
from kprune.evaluate import Evaluation
from kprune.families import family_of
from kprune.memory import is_out_of_memory
from kprune.plugin import compare_shapes, shapes_in
from kprune.pruned import Pruned
from kprune.record import apply, record_of

SIDE_FILES = {".json", ".txt", ".model", ".jinja"}
"""Endings of tokenizer, label and generation files, which come along as they are."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
"""Files that could run code when they are loaded; they are left behind."""
OWN_FILES = {"config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json"}
"""Files that `save_pretrained` writes anew."""


def fetch(name: str) -> Path:
    """The folder of a model: the folder of that name, or else what the hub has under it."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise BadCheckpoint(f"{name} is a file, not a model's folder; pass the folder that holds config.json.")
    wanted = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
    except HFValidationError as error:
        raise BadCheckpoint(f"there is no folder {name}, and it is not a hub name either; check the path.") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise BadCheckpoint(
            f"there is no folder {name}, and the hub did not give a model of that name "
            f"({type(error).__name__}); check the spelling and the network, or pass a folder."
        ) from error


class Source:
    """A model's folder on disk, plain or of sentence-transformers, whose encoder may lie in a folder of its own."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        self.folder = folder
        self.name = name or folder.resolve().name
        self.modules = self._modules()
        encoders = [
            entry["path"] for entry in self.modules if entry["type"].split(".")[-1] in ("Transformer", "MLMTransformer")
        ]
        self.encoder_path: str = encoders[0] if encoders else ""
        if not (self.encoder / "config.json").is_file():
            raise BadCheckpoint(f"{self.encoder} holds no model (no config.json); pass a checkpoint's folder.")

    @property
    def encoder(self) -> Path:
        return self.folder / self.encoder_path

    @property
    def is_sentence_transformer(self) -> bool:
        return bool(self.modules)

    def _modules(self) -> list[dict[str, str]]:
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
                raise BadCheckpoint(f"{file} names the folder {entry['path']!r}, outside its own; restore it.")
        return entries

    def _json(self, path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        except (ValueError, RecursionError) as error:
            raise BadCheckpoint(f"{path} is not JSON ({error}); restore it.") from error
        return content if isinstance(content, dict) else {}

    @property
    def pooling(self) -> str:
        """How sentence-transformers pools this encoder's tokens; mean where nothing is said."""
        for entry in self.modules:
            if entry["type"].endswith("Pooling"):
                config = self._json(self.folder / entry["path"] / "config.json")
                if "pooling_mode" in config:
                    return str(config["pooling_mode"])
                flags = [name for name, on in config.items() if name.startswith("pooling_mode_") and on]
                modes = [flag.removeprefix("pooling_mode_").split("_")[0] for flag in flags]
                return "+".join(modes) or "mean"
        return "mean"

    @property
    def max_length(self) -> int | None:
        """The length at which sentence-transformers truncates, where it says so."""
        length = self._json(self.encoder / "sentence_bert_config.json").get("max_seq_length")
        return length if isinstance(length, int) and length > 0 else None

    def load_config(self) -> PreTrainedConfig:
        with reading(self.encoder):
            self._require_labels()
            return cast(PreTrainedConfig, AutoConfig.from_pretrained(self.encoder, trust_remote_code=False))

    def load(self) -> PreTrainedModel:
        """The model, in its stored dtype, with the head that its config names."""
        config = self.load_config()
        with reading(self.encoder):
            family_of(config)  # refused by name before any weight is read
            record_of(config)
            self._require_layers(config)
            loader = self.class_of(config)
            self._require_shapes(loader, config)
            model, info = cast(
                tuple[PreTrainedModel, dict[str, Any]],
                loader.from_pretrained(self.encoder, use_safetensors=True, output_loading_info=True),
            )
        # An embedding model's pooler is often absent, and never used by what pools tokens.
        missing = sorted(name for name in info["missing_keys"] if ".pooler." not in f".{name}")
        if missing:
            raise BadCheckpoint(
                f"{self.encoder} lacks weights of a {type(model).__name__}, {missing[0]} first; "
                "nothing can be learnt from random ones: pass a fine-tuned checkpoint."
            )
        return model

    def _require_layers(self, config: PreTrainedConfig) -> None:
        """Refuse a config that tells of more layers than there are weights for, before they are built."""
        layer = re.compile(rf"(?:^|\.){re.escape(family_of(config).layers)}\.(\d{{1,9}})\.")
        shapes = self._shapes()
        there = {found[1] for found in map(layer.search, shapes) if found}
        if shapes and config.num_hidden_layers > len(there):
            raise BadCheckpoint(
                f"{self.encoder}/config.json tells of {config.num_hidden_layers} layers, and there are weights of "
                f"{len(there)}; restore the whole folder."
            )

    def _require_labels(self) -> None:
        """Refuse a config that tells of more labels than any weight is wide, before they are named one by one."""
        labels = self._json(self.encoder / "config.json").get("num_labels")
        widest = max(chain.from_iterable(self._shapes().values()), default=None)
        if isinstance(labels, int) and widest is not None and labels > widest:
            raise BadCheckpoint(
                f"{self.encoder}/config.json tells of {labels} labels, and no weight is that wide; restore the folder."
            )

    def _require_shapes(self, loader: type[PreTrainedModel], config: PreTrainedConfig) -> None:
        """Refuse weights of other shapes than the config tells, before they are read."""
        record = record_of(config)
        with torch.device("meta"):
            skeleton = loader(config)
        if record is not None:
            apply(record, skeleton)
        compare_shapes(skeleton, self._shapes(), "config.json")

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The weights' shapes; empty where there are none."""
        return shapes_in([file for file in self._weights_files() if file.is_file()])

    def _weights_files(self) -> list[Path]:
        """The files that hold the weights, which may not lead out of the folder."""
        if self._json(self.encoder / "config.json").get("transformers_weights") is not None:
            raise BadCheckpoint(
                f"{self.encoder}/config.json names weights of its own (transformers_weights); kprune reads "
                "model.safetensors: rename them."
            )
        index = self.encoder / "model.safetensors.index.json"
        if (self.encoder / "model.safetensors").exists() or not index.exists():
            return [self.encoder / "model.safetensors"]
        names = self._json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise BadCheckpoint(f"{index} has no map of weights to files; restore it.")
        for name in names.values():
            if not name.endswith(".safetensors") or Path(name).name != name:
                raise BadCheckpoint(
                    f"{index} names the file {name!r:.80}, which is no file of weights beside it; restore it."
                )
        return [self.encoder / name for name in sorted(set(names.values()))]

    def class_of(self, config: PreTrainedConfig) -> type[PreTrainedModel]:
        """The class that the folder's model is loaded with: what its config names, or the bare encoder."""
        task = self._json(self.encoder / "sentence_bert_config.json").get("transformer_task", "feature-extraction")
        name = config.architectures[0] if config.architectures else ""
        if not name or (self.is_sentence_transformer and task == "feature-extraction"):
            return cast(type[PreTrainedModel], MODEL_MAPPING[type(config)])
        found = getattr(transformers, name, None)
        if not (isinstance(found, type) and issubclass(found, PreTrainedModel)):
            raise BadCheckpoint(
                f"{self.encoder} holds a {name!r}, which transformers does not have; kprune runs no custom code."
            )
        return found

    def load_tokenizer(self) -> Any:
        with reading(self.encoder):
            return AutoTokenizer.from_pretrained(self.encoder, trust_remote_code=False)

    def copy_to(self, target: Path) -> None:
        """Copy all that belongs to the model beside its weights: tokenizer, labels, sentence-transformers modules."""
        _copy_side_files(self.encoder, target / self.encoder_path)
        if self.is_sentence_transformer:
            _copy_side_files(self.folder, target)
        for entry in self.modules:
            if entry["path"] not in ("", self.encoder_path) and (self.folder / entry["path"]).is_dir():
                shutil.copytree(
                    self.folder / entry["path"],
                    target / entry["path"],
                    dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns(*PICKLES),
                )


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn what transformers says of a folder it cannot read into one sentence."""
    try:
        yield
    except KpruneError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # transformers raises whatever a value that it did not expect leads to
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadCheckpoint(f"cannot load {folder}: {reason}") from error


def _copy_side_files(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and file.suffix in SIDE_FILES and file.name not in OWN_FILES:
            shutil.copyfile(file, target / file.name)


GRAPHS = {"model.onnx", "openvino_model.xml", "openvino_model.bin"}
"""Weights of exported folders."""


def require_free(folder: Path, *, overwrite: bool) -> None:
    """Refuse an output folder that exists, unless it is a checkpoint that may be replaced, and one out of reach."""
    _require_writable(folder)
    if not folder.exists():
        return
    if not overwrite:
        raise KpruneError(f"{folder} exists; choose another folder, or pass --overwrite to replace it.")
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else [folder]
    weights = [path for path in files if path.suffix == ".safetensors" or path.name in GRAPHS]
    strangers = [path for path in files if path.suffix not in {*SIDE_FILES, ".md"} and path not in weights]
    if strangers or (files and not weights):
        what = f"it holds {strangers[0].name}" if strangers else "it holds no weights"
        raise KpruneError(
            f"{folder} is more, or less, than a checkpoint ({what}), and so is not replaced; choose another."
        )


def _require_writable(folder: Path) -> None:
    there = folder
    try:
        folder = folder.resolve()
        there = next(path for path in (*folder.parents, folder) if path.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise KpruneError(f"cannot write to {there}: {error.strerror}; choose another folder.") from error


@contextmanager
def whole_or_absent(folder: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A new folder to write into, that takes its name only when all is written; on any error nothing is left."""
    tidy(folder)
    require_free(folder, overwrite=overwrite)
    folder = folder.resolve()
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    retired = partial.with_suffix(".retired")
    lock = None
    try:
        partial.mkdir(parents=True)
        lock = _locked(partial)
        yield partial
        if folder.exists() and not overwrite:
            raise KpruneError(f"{folder} was written by another run meanwhile; choose another folder.")
        if folder.exists():
            folder.rename(retired)
        partial.rename(folder)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise KpruneError(f"could not write {folder}: {reason}; nothing was left there.") from error
    finally:
        if retired.exists() and not folder.exists():
            retired.rename(folder)
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(retired, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def tidy(folder: Path) -> None:
    """Clear away what a killed run left beside a folder; what it was about to replace gets its name back."""
    folder = folder.resolve()
    if not os.access(folder.parent, os.R_OK | os.X_OK):
        return
    left = re.compile(rf"\.{re.escape(folder.name)}\.\d+\.(partial|retired)")
    found = [path for path in folder.parent.iterdir() if left.fullmatch(path.name)]
    for partial in (path for path in found if path.suffix == ".partial"):
        lock = _locked(partial)
        if lock is not None:  # nobody is writing there
            shutil.rmtree(partial, ignore_errors=True)
            os.close(lock)
    for retired in (path for path in found if path.suffix == ".retired"):
        if retired.with_suffix(".partial").exists():
            continue
        if folder.exists():
            shutil.rmtree(retired, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):  # another run was faster
                retired.rename(folder)


def _locked(folder: Path) -> int | None:
    """A descriptor that locks a folder until it is closed, or its process ends; None where another has it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def save(
    pruned: Pruned,
    folder: str | Path,
    *,
    source: Source | None = None,
    evaluation: Evaluation | None = None,
    note: str = "",
    overwrite: bool = False,
    written: Callable[[Path], None] = lambda partial: None,
) -> Path:
    """Write a pruned model as a checkpoint folder, with its card and all that came beside the dense one.

    `note` is a sentence for the card. `written` is called when all is written, and has not got its name yet.
    """
    folder = Path(folder)
    with whole_or_absent(folder, overwrite=overwrite) as partial:
        if source is not None:
            source.copy_to(partial)
        pruned.model.save_pretrained(partial / (source.encoder_path if source else ""))
        is_sentence_transformer = source is not None and source.is_sentence_transformer
        name = source.name if source else pruned.model.config.model_type
        card = model_card(
            pruned,
            source=name,
            folder=folder.name,
            is_sentence_transformer=is_sentence_transformer,
            evaluation=evaluation,
            note=note,
        )
        (partial / "README.md").write_text(card, encoding="utf-8")
        written(partial)
    return folder
