"""Peak memory of pruning, with streams in memory and with streams on a disk, each in a separate process.

    python benchmarks/memory.py --out benchmarks/results/memory.json

The shape is that of BERT-large: 24 layers, 1,024 wide, 4,096 neurons. Weights are random, which does not change the
allocations. The result is the peak of the process beyond the loaded model: the student (a copy of the model),
statistics, activations, and the streams if they are in memory. Pass `--tokens` more than once to get the cost per token
from the slope.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import torch
from cost import batches_of, peak_megabytes, present_megabytes
from machine import provenance
from transformers import BertConfig, BertForSequenceClassification

from kprune import prune

SHAPE: dict[str, Any] = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}


def measure(layers: int, tokens: int, length: int, reduction: float, offload: str | None) -> dict[str, Any]:
    """Peak memory of one run, in this process."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=2000, num_hidden_layers=layers, **SHAPE)).eval()
    for parameter in model.parameters():  # touch every page: an untouched weight is not in memory yet
        parameter.data.add_(0.0)
    loaded = present_megabytes()
    pruned = prune(model, batches_of(tokens, length), reduction=reduction, ridge=1e-4, offload=offload)
    return {
        "layers": layers,
        "tokens": pruned.tokens,
        "reduction": reduction,
        "streams": "on a disk" if offload else "in memory",
        "megabytes_of_weights": round(model.num_parameters() * 4 / 2**20),
        "megabytes_beyond_weights": round(peak_megabytes() - loaded),
        "seconds": round(pruned.seconds),
    }


@click.command()
@click.option("--layers", default=24, show_default=True)
@click.option("--tokens", "tokens", type=int, multiple=True, default=(4_000, 12_000), show_default=True)
@click.option("--length", default=32, show_default=True, help="Mean length of the inputs.")
@click.option("--reduction", default=0.9, show_default=True)
@click.option("--streams", type=click.Choice(["both", "disk"]), default="both", show_default=True)
@click.option(
    "--place", type=click.Path(path_type=Path), help="Folder on a disk.  [default: the system's temporary folder]"
)
@click.option("--out", type=click.Path(path_type=Path))
@click.option("--inner", hidden=True)
def main(
    tokens: tuple[int, ...], streams: str, place: Path | None, out: Path | None, inner: str | None, **case: Any
) -> None:
    """Print the peak memory of each case."""
    if inner:
        click.echo(json.dumps(measure(**json.loads(inner))))
        return
    lines = []
    for offload in (None, str(place or tempfile.gettempdir())):
        if offload is None and streams == "disk":
            continue
        for number in tokens:
            given = json.dumps({**case, "tokens": number, "offload": offload})
            done = subprocess.run([sys.executable, __file__, "--inner", given], stdout=subprocess.PIPE, check=True)
            lines.append(json.loads(done.stdout.splitlines()[-1]))
            click.echo(json.dumps(lines[-1]))
    if out:
        out.write_text(json.dumps({"cases": lines, **provenance()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
