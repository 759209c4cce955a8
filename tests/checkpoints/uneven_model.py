"""A pruned model with uneven layers, for the tests of checkpoints."""

import json
from functools import cache
from pathlib import Path

import tiny

import kprune

BATCHES = tiny.batched(tiny.texts(64))


@cache
def uneven_result() -> kprune.Pruned:
    """A run that left uneven layers and emptied attentions; tests must not change its model."""
    result = kprune.prune(tiny.tiny_model(), BATCHES, reduction=0.85, align=1)
    assert any(not step.kept for step in result.steps)
    return result


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def change_record(folder: Path, change) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config["quantization_config"])
    (folder / "config.json").write_text(json.dumps(config))
