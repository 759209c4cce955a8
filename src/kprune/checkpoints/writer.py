"""Write a pruned model as a checkpoint folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kprune.checkpoints.atomic import staged_folder
from kprune.checkpoints.card import HasCardSection, model_card
from kprune.checkpoints.source import Source
from kprune.pruning.result import Pruned


def save(
    pruned: Pruned,
    folder: str | Path,
    *,
    source: Source | None = None,
    evaluation: HasCardSection | None = None,
    note: str = "",
    overwrite: bool = False,
    written: Callable[[Path], None] = lambda staging: None,
) -> Path:
    """Write a pruned model as a checkpoint folder, with its card and the side files of `source`.

    `note` is a sentence for the card. `written(staging)` is called after the last file, before the final rename.
    """
    folder = Path(folder)
    with staged_folder(folder, overwrite=overwrite) as staging:
        if source is not None:
            source.copy_to(staging)
        pruned.model.save_pretrained(staging / (source.encoder_path if source else ""))
        card = model_card(
            pruned,
            source=source.name if source else pruned.model.config.model_type,
            folder=folder.name,
            is_sentence_transformer=source is not None and source.is_sentence_transformer,
            evaluation=evaluation,
            note=note,
        )
        (staging / "README.md").write_text(card, encoding="utf-8")
        written(staging)
    return folder
