"""The image processor or feature extractor of a model folder: what turns images and sounds into inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoFeatureExtractor, AutoImageProcessor, PreTrainedConfig

from kprune.checkpoints.files import PROCESSOR_FILES
from kprune.checkpoints.source import Source, reading
from kprune.data.items import IMAGES, MEDIA, Medium
from kprune.data.processing import MediaReader, reader_of
from kprune.errors import BadCheckpoint


def has_processor(folder: Path) -> bool:
    return any((folder / name).is_file() for name in PROCESSOR_FILES)


def main_input(source: Source, config: PreTrainedConfig | None = None) -> str:
    """The name of the folder's model's main input, such as `input_ids` or `pixel_values`."""
    return str(source.class_of(source.load_config() if config is None else config).main_input_name)


def medium_of(source: Source) -> Medium | None:
    """What the folder's model reads; None: text."""
    return MEDIA.get(main_input(source))


def load_reader(source: Source) -> Any:
    """The tokenizer of a model of text, or the reader of images or sounds."""
    inputs = main_input(source)
    if inputs not in MEDIA:
        return source.load_tokenizer()
    return reader_of(load_processor(source, MEDIA[inputs]), inputs)


def load_processor(source: Source, medium: Medium) -> Any:
    """The image processor or the feature extractor, which must be in the folder."""
    if not has_processor(source.encoder):
        raise BadCheckpoint(
            f"{source.encoder} has no {PROCESSOR_FILES[0]}, so the model cannot read {medium.name}; add the file (in "
            "Python: processor.save_pretrained)."
        )
    loader: Any = AutoImageProcessor if medium is IMAGES else AutoFeatureExtractor
    with reading(source.encoder):
        return loader.from_pretrained(source.encoder, trust_remote_code=False)


def settings_of(reader: MediaReader) -> dict[str, Any]:
    """The settings of a processor, without its class."""
    settings = reader.processor.to_dict()
    return {name: value for name, value in settings.items() if not name.endswith(("_type", "processor_class"))}
