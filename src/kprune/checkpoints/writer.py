"""Write a pruned model as a checkpoint folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import ModelCard
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from transformers import PreTrainedConfig, PreTrainedModel

from kprune.checkpoints.atomic import staged_folder
from kprune.checkpoints.card import HasCardSection, healed_card, model_card
from kprune.checkpoints.files import MODELING_FILE
from kprune.checkpoints.names import hub_name, origin_of, short_name
from kprune.checkpoints.processors import has_processor, load_processor
from kprune.checkpoints.self_contained import is_self_contained, update_modeling
from kprune.checkpoints.source import Source
from kprune.checkpoints.tokenizer_checks import has_tokenizer, require_fit
from kprune.data.items import MEDIA
from kprune.errors import BadCheckpoint, KpruneError
from kprune.healing.result import Healed
from kprune.pruning.choices import require_static
from kprune.pruning.result import Pruned

log = logging.getLogger(__name__)


def save(
    pruned: Pruned | Healed,
    folder: str | Path,
    *,
    source: Source | str | Path | None = None,
    tokenizer: Any = None,
    processor: Any = None,
    evaluation: HasCardSection | None = None,
    note: str = "",
    overwrite: bool = False,
    self_contained: bool = False,
    written: Callable[[Path], None] = lambda staging: None,
) -> Path:
    """Write a pruned model as a checkpoint folder, with its card, its tokenizer and the side files of `source`.

    `source` is the dense model's folder; a model that was pruned by its name brings it.
    `processor` is the image processor or the feature extractor of a model that reads images or sounds. Without it,
    `tokenizer` and `source`, they are those of the folder or cached hub model from which the dense model was loaded.
    `note` is a sentence for the card. With `self_contained`, or if `source` is, a modeling file beside the weights
    loads the folder without kprune (`trust_remote_code=True`). `written(staging)` is called after the last file, before
    the final rename.
    """
    folder, source = Path(folder), None if source is None else Source.of(source)
    if isinstance(pruned, Healed):
        if pruned.pruned is None:
            return _save_healed(
                pruned, folder, source, evaluation, overwrite=overwrite, self_contained=self_contained, written=written
            )
        pruned = pruned.pruned
    if not isinstance(pruned, Pruned):
        raise KpruneError(f"save takes the result of kprune.prune, not a {type(pruned).__name__}; pass that.")
    require_static(pruned.config.method)
    source = source or pruned.source
    readers = _readers_for(pruned.model, folder, source, tokenizer, processor)
    _warn_of_lost_modules(pruned, folder, source)
    with staged_folder(folder, overwrite=overwrite) as staging:
        if source is not None:
            source.copy_to(staging)
        encoder = staging / (source.encoder_path if source else "")
        _write_model(pruned.model, encoder, source, self_contained=self_contained)
        for reader in readers:
            reader.save_pretrained(encoder)
        card = model_card(
            pruned,
            source=_title(pruned.model.config, source),
            folder=folder.name,
            sentence_class=source.sentence_class if source else None,
            base_model=_base_model(pruned.model.config, source),
            evaluation=evaluation,
            note=note,
            is_self_contained=(encoder / MODELING_FILE).is_file(),
        )
        (staging / "README.md").write_text(card, encoding="utf-8")
        written(staging)
    return folder


def _save_healed(
    healed: Healed,
    folder: Path,
    source: Source | None,
    evaluation: HasCardSection | None,
    *,
    overwrite: bool,
    self_contained: bool,
    written: Callable[[Path], None],
) -> Path:
    """Write a healed model beside the side files of the folder that it was pruned to, with a line in its card."""
    origin = _origin_folder(healed.model.config)
    if source is None and origin is None:
        raise KpruneError("the healed model has no folder of its own; pass save(…, source=folder of the pruned model).")
    source = source or Source(origin or "")
    with staged_folder(folder, overwrite=overwrite) as staging:
        source.copy_to(staging)
        _write_model(healed.model, staging / source.encoder_path, source, self_contained=self_contained)
        before = source.folder / "README.md"
        card = before.read_text("utf-8") if before.is_file() else f"# {source.title}, healed\n"
        card = card.replace(f'("{source.folder.name}")', f'("{folder.name}")')  # the code that loads it
        (staging / "README.md").write_text(healed_card(card, healed.describe(), evaluation), encoding="utf-8")
        written(staging)
    return folder


def _write_model(model: PreTrainedModel, encoder: Path, source: Source | None, *, self_contained: bool) -> None:
    """Write config and weights, and the modeling file of a self-contained folder; an ordinary model needs none."""
    model.save_pretrained(encoder)
    was_self_contained = source is not None and is_self_contained(source)
    update_modeling(encoder, model, is_wanted=self_contained or was_self_contained)


def _readers_for(
    model: PreTrainedModel, folder: Path, source: Source | None, tokenizer: Any, processor: Any
) -> list[Any]:
    """The tokenizer and the processor to write; none of them if the source's files have it, or none is known."""
    medium = MEDIA.get(model.main_input_name)
    if medium is None:
        found = _tokenizer_for(model.config, folder, source, tokenizer)
        return [] if found is None else [found]
    origin = _origin_folder(model.config)
    if processor is None and source is None and origin is not None and has_processor(origin):
        processor = load_processor(Source(origin), medium)
    if processor is None and not (source is not None and has_processor(source.encoder)):
        log.warning(
            "no processor was found, so %s cannot read %s; pass save(…, processor=processor)", folder, medium.name
        )
    if tokenizer is None and source is None:
        tokenizer = _find_tokenizer(model.config)
    return [each for each in (processor, tokenizer) if each is not None]


def _warn_of_lost_modules(pruned: Pruned, folder: Path, source: Source | None) -> None:
    """Log what a sentence-transformers folder loses, if the dense model is from one."""
    origin = _origin_folder(pruned.model.config)
    if source is None and (origin is None or not (origin / "config.json").is_file()):
        return
    dense = source or Source(origin or "")
    if not dense.is_sentence_transformer:
        return
    if source is None:
        log.warning(
            "%s is saved without the modules of sentence-transformers; pass save(…, source=%r)",
            folder,
            str(dense.folder),
        )
    if pruned.model is not pruned.model.base_model:
        return  # it has a head
    if pruned.config.pooling != dense.pooling:
        log.warning(
            "the sample was measured with %s pooling, but %s has another pooling: prune(…, pooling=%r) measures it",
            pruned.config.pooling,
            dense.title,
            dense.pooling,
        )


def _tokenizer_for(config: PreTrainedConfig, folder: Path, source: Source | None, tokenizer: Any) -> Any:
    """The tokenizer to write, or None if the source's files have it or none is known."""
    if tokenizer is not None:
        require_fit(tokenizer, config, f"the argument `tokenizer` ({type(tokenizer).__name__})")
        return tokenizer
    if source is not None and has_tokenizer(source.encoder):
        return None
    found = _find_tokenizer(config)
    if found is None:
        log.warning("no tokenizer was found, so %s cannot read text; pass save(…, tokenizer=tokenizer)", folder)
    return found


def _find_tokenizer(config: PreTrainedConfig) -> Any:
    """The tokenizer of the folder, or of the cached hub model, from which a model was loaded; None without one."""
    origin = _origin_folder(config)
    if origin is None or not has_tokenizer(origin):
        return None
    try:
        tokenizer = Source(origin).load_tokenizer()
        require_fit(tokenizer, config, str(origin))
    except BadCheckpoint as error:
        log.warning("%s", error)
        return None
    return tokenizer


def _origin_folder(config: PreTrainedConfig) -> Path | None:
    """The local folder from which a model was loaded, in the hub's cache for a hub model."""
    origin = origin_of(config)
    if not origin or Path(origin).is_dir():
        return Path(origin) if origin else None
    try:
        revision = getattr(config, "_commit_hash", None)
        return Path(huggingface_hub.snapshot_download(origin, revision=revision, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError, OSError, ValueError):
        return None  # not a hub name, or not in the cache


def _title(config: PreTrainedConfig, source: Source | None) -> str:
    if source is not None:
        return source.title
    return short_name(origin_of(config)) if origin_of(config) else str(config.model_type)


def _base_model(config: PreTrainedConfig, source: Source | None) -> str | None:
    """The hub name of the dense model; a model that was pruned before has it in its card."""
    if source is None:
        folder = _origin_folder(config)
        return hub_name(origin_of(config)) or (_base_in_card(folder) if folder else None)
    return source.hub_name or _base_in_card(source.folder)


def _base_in_card(folder: Path) -> str | None:
    """The base model in the card that kprune wrote to a folder."""
    try:
        data = ModelCard.load(folder / "README.md").data if (folder / "README.md").is_file() else None
    except (ValueError, OSError):
        return None  # not a card
    base = getattr(data, "base_model", None)
    return base if isinstance(base, str) and "kprune" in (getattr(data, "tags", None) or []) else None
