"""`kprune self-contain`."""

from __future__ import annotations

from pathlib import Path

import click

from kprune.cli.group import Work


@click.command(
    "self-contain",
    cls=Work,
    examples=('kprune self-contain small  # then AutoModel.from_pretrained("small", trust_remote_code=True)',),
)
@click.argument("folder", type=click.Path(path_type=Path))
def self_contain_command(folder: Path) -> None:
    """Write a modeling file into FOLDER, a pruned model: transformers then loads it without kprune.

    from_pretrained needs trust_remote_code=True. With kprune imported, the folder loads as before.
    """
    from kprune.checkpoints.self_contained import make_self_contained
    from kprune.report.bars import out

    file = make_self_contained(folder)
    out.print(
        f"Wrote {file}. It loads without kprune: from_pretrained(…, trust_remote_code=True).",
        highlight=False,
        soft_wrap=True,
    )
