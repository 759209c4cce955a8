"""Kill `kprune prune --checkpoint` at random moments, restart it, and compare the result with an uninterrupted run.

    python benchmarks/kills.py --kills 50 --out benchmarks/results/kills.json

A tiny classifier and all-MiniLM-L6-v2 take turns. A command is killed (-9) at a moment drawn uniformly over the time of
an uninterrupted run, and started again. After a few kills it runs to its end. Its weights must then equal those of the
uninterrupted run bit for bit, and no other files may remain.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import click
import torch
from machine import provenance
from transformers import BertConfig, BertForSequenceClassification

from kprune.data.calibration import python_documentation
from kprune.jobs.demo import embedded_model

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def digest(folder: Path) -> str:
    """Hash of the weights in a checkpoint folder."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def tiny_model(folder: Path) -> Path:
    torch.manual_seed(0)
    source = embedded_model()
    tokenizer = source.load_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=64,
        pad_token_id=0,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def command(model: Path, text: Path, tokens: int, criterion: str) -> list[str]:
    words = ["prune", model, "--text", text, "--tokens", tokens, "--reduction", 0.6, "--criterion", criterion]
    return [sys.executable, "-m", "kprune", *map(str, words)]


@click.command()
@click.option("--kills", default=50, show_default=True)
@click.option("--most", default=4, show_default=True, help="Kills of one run before it runs to its end.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path))
def main(kills: int, most: int, seed: int, out: Path | None) -> None:
    """Count kills, and runs with a wrong result."""
    generator = random.Random(seed)
    place = Path(tempfile.mkdtemp(prefix="kills-"))
    text = place / "text.txt"
    text.write_text("\n".join(" ".join(line.split()) for line in python_documentation()[:800]), encoding="utf-8")
    cases = []
    for name, model, tokens in (("tiny", tiny_model(place / "tiny"), 5_000), ("real", embedded_model().folder, 4_000)):
        for criterion in ("compensated", "fisher"):
            words = command(model, text, tokens, criterion)
            clean = place / f"clean-{name}-{criterion}"
            began = perf_counter()
            subprocess.run([*words, str(clean)], check=True, env=ENVIRONMENT, capture_output=True)
            cases.append((f"{name} {criterion}", words, digest(clean), perf_counter() - began))
    done, runs, lines = 0, 0, []
    while done < kills:
        name, words, expected, seconds = cases[runs % len(cases)]
        room = place / f"run-{runs}"
        room.mkdir()
        started = [*words, str(room / "out"), "--checkpoint", str(room / "kept")]
        killed, is_over = 0, False
        while not is_over:
            with (place / "stderr").open("w") as stderr:
                process = subprocess.Popen(started, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=stderr)
            try:
                is_spared = killed == most or done + killed == kills
                is_over = process.wait(None if is_spared else seconds * generator.random()) == 0
                if not is_over:
                    reason = (place / "stderr").read_text()[-500:]
                    raise click.ClickException(
                        f"{name} ended with {process.returncode} after {killed} kills: {reason}; see {room}"
                    )
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                killed += 1
                # The run was complete but for its last message; a restart would find that OUT exists.
                is_over = (room / "out").exists() and not (room / "kept").exists()
        left = sorted(path.name for path in room.iterdir())
        line = {"case": name, "kills": killed, "equal": digest(room / "out") == expected, "left": left}
        lines.append(line)
        click.echo(json.dumps(line))
        done, runs = done + killed, runs + 1
        shutil.rmtree(room)
    shutil.rmtree(place)
    broken = [line for line in lines if not line["equal"] or line["left"] != ["out"]]
    if out:
        out.write_text(
            json.dumps({"kills": done, "broken": len(broken), "runs": lines, **provenance()}, indent=1) + "\n"
        )
    if broken:
        raise click.ClickException(f"{len(broken)} of {len(lines)} runs came out wrong: {broken}")
    click.echo(f"{done} kills in {len(lines)} runs, all equal to the clean run, nothing left behind.")


if __name__ == "__main__":
    main()
