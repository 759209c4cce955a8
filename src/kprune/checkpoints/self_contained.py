"""Self-contained folders: a modeling file beside the weights, with which transformers loads them without kprune.

The file needs `trust_remote_code=True`. It consists of `models/standalone.py`, the layout of the model's layers, and
one class for each class of transformers that the folder may be loaded as.
"""

from __future__ import annotations

import inspect
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.pytorch_utils import Conv1D

from kprune.checkpoints.files import MODELING_FILE
from kprune.checkpoints.source import Source
from kprune.errors import KpruneError
from kprune.models import standalone
from kprune.models.families import family_of
from kprune.models.pruned_shape import record_of
from kprune.models.sublayer import Sublayer, find

MODULE = MODELING_FILE.removesuffix(".py")
CLASS = """class {0}(transformers.{0}):
    def __init__(self, config, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        resize(self, LAYERS, BLOCKS)

    @classmethod
    def is_custom_code(cls):
        return False  # its weights have the names that transformers gives them
"""
"""A class of the modeling file, by the name of the class of transformers that it narrows."""


def make_self_contained(folder: str | Path) -> Path:
    """Write the modeling file into a pruned folder, and name it in config.json; returns the file."""
    source = Source(folder)
    config = source.load_config()
    if record_of(config) is None:
        raise KpruneError(f"{folder} is an ordinary model, which loads without kprune; there is nothing to add.")
    return write_modeling(source.encoder, config, source.class_of(config))


def write_modeling(folder: Path, config: PreTrainedConfig, model_class: type[PreTrainedModel]) -> Path:
    """Write the modeling file into the folder of an encoder, and name it in config.json; returns the file."""
    with torch.device("meta"):
        skeleton = model_class(config)
    classes = list(dict.fromkeys([model_class, cast(type[PreTrainedModel], type(skeleton.base_model))]))
    file = folder / MODELING_FILE
    _replace(file, modeling_source(skeleton, classes))
    stored = json.loads((folder / "config.json").read_text("utf-8"))
    stored["auto_map"] = _auto_map(config, classes)
    _replace(folder / "config.json", json.dumps(stored, indent=2, sort_keys=True) + "\n")
    return file


def is_self_contained(source: Source) -> bool:
    """Whether a model folder has a modeling file that kprune wrote."""
    return (source.encoder / MODELING_FILE).is_file()


def update_modeling(folder: Path, model: PreTrainedModel, *, is_wanted: bool) -> None:
    """Write the modeling file of a pruned model if it is wanted; else let config.json name none."""
    if is_wanted and record_of(model.config) is not None:
        write_modeling(folder, model.config, type(model))
    else:
        drop_modeling(folder)


def drop_modeling(folder: Path) -> None:
    """Remove the name of a modeling file from the config.json of a folder that has none."""
    stored = json.loads((folder / "config.json").read_text("utf-8"))
    autos = stored.get("auto_map")
    if isinstance(autos, dict) and any(str(name).startswith(MODULE + ".") for name in autos.values()):
        del stored["auto_map"]
        _replace(folder / "config.json", json.dumps(stored, indent=2, sort_keys=True) + "\n")


def modeling_source(skeleton: PreTrainedModel, classes: list[type[PreTrainedModel]]) -> str:
    """The text of the modeling file for models with the layers of a dense skeleton."""
    lowest = {sublayer.kind: sublayer for sublayer in reversed(find(skeleton))}
    family = family_of(skeleton.config)
    layout = {kind: _layout(lowest[kind]) for kind in family.blocks}
    constants = f'LAYERS = "{family.layers}"\nBLOCKS = {json.dumps(layout, indent=4)}\n'
    definitions = [CLASS.format(each.__name__) for each in classes]
    return "\n\n".join([inspect.getsource(standalone), constants, *definitions])


def _layout(sublayer: Sublayer) -> dict[str, Any]:
    """What the modeling file must know of a sublayer of the dense model."""
    block, family, layer = sublayer.block, sublayer.family, sublayer.layer
    parameters = dict(sublayer.parameters)
    for path in block.producers:
        module = layer.get_submodule(path)
        parameters[path + ".weight"] = 1 if isinstance(module, Conv1D) else 0
        if getattr(module, "bias", None) is not None:
            parameters[path + ".bias"] = 0
    parameters[block.consumer + ".weight"] = 0 if isinstance(layer.get_submodule(block.consumer), Conv1D) else 1
    optional: dict[str, Any] = {}
    if block.head_bias is not None:
        optional["head_bias"] = block.head_bias
    if family.shared_bias is not None and sublayer.kind == "attention":
        buckets, heads = layer.get_parameter(family.shared_bias + ".weight").shape
        optional["shared_bias"] = [family.shared_bias, heads, buckets]
    return {
        "module": block.module,
        "consumer": block.consumer,
        "units": sublayer.units,
        "parameters": parameters,
        "counts": [path for path, _ in block.counts],
        "returns": block.returns,
        "cache": block.cache,
        **optional,
    }


def _auto_map(config: PreTrainedConfig, classes: list[type[PreTrainedModel]]) -> dict[str, str]:
    """For each Auto class that loads one of the classes, its name in the modeling file.

    `AutoModel` loads a class that no Auto class of transformers loads.
    """
    found = {}
    for name, auto in vars(modeling_auto).items():
        mapping = getattr(auto, "_model_mapping", None)
        if not name.startswith("Auto") or mapping is None:
            continue
        known = mapping.get(type(config), ())
        own = [each for each in classes if each in (known if isinstance(known, tuple) else (known,))]
        if own:
            found[name] = f"{MODULE}.{own[0].__name__}"
    first = f"{MODULE}.{classes[0].__name__}"
    if first not in found.values():
        found["AutoModel"] = first
    return {"AutoModel": first, **found}


def _replace(file: Path, text: str) -> None:
    """Write a file in one step: a reader sees the old text or the new one."""
    staged = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        staged.write_text(text, encoding="utf-8")
        staged.replace(file)
    except OSError as error:
        with suppress(OSError):
            staged.unlink(missing_ok=True)
        raise KpruneError(f"could not write {file}: {error.strerror}; copy the folder to another place.") from error
