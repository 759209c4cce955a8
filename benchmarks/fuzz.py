"""Feed damaged and hostile files to kprune, and check that it refuses them quickly and with little memory.

    python benchmarks/fuzz.py --cases 100000 --out benchmarks/results/fuzz.json

There are four targets: the config.json of a pruned folder (mutated pruning record, other entries or bytes), the header
and index of its weights, tables and text files, and the journal files of a run. A case passes if kprune accepts the
file, or refuses it with a KpruneError. A case fails if anything else is raised, if it takes longer than ten seconds, or
if it needs too much memory. The limit is twice the size of the intact file plus a fixed allowance for the libraries.
The process cannot allocate more. Failed cases are printed, and kept with --keep.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import pyarrow
import torch
import transformers
from machine import provenance
from pyarrow import parquet
from transformers import BertConfig, BertForSequenceClassification

from kprune import KpruneError, Pruned, prune
from kprune.checkpoints.source import Source, reading
from kprune.data.readers import read_lines, read_rows
from kprune.errors import OutOfMemory
from kprune.runtime.memory import is_out_of_memory

ROOM = 32 * 2**20
"""Bytes allowed for buffers of the libraries."""
PATIENCE = 10
NASTY: list[Any] = [
    *(None, True, False, 0, 1, -1, 3, 7, 2**20, 2**31 - 1, 2**31, 2**63, 10**30, -(2**63), 0.5, -0.0, 1e308, 1e-320),
    *(float("nan"), float("inf"), "", " ", "0", "kprune", "attention", "../../etc/passwd", "/etc/passwd", "\ud800"),
    *("\0", "x" * 10_000, [], {}, [[]], [{}], {"": 0}, [None] * 50, {"attention": 1}, {"ffn": 1, "attention": 1}),
]


@dataclass(frozen=True)
class Target:
    """A reader of files, and a way to damage its files."""

    name: str
    honest: int
    """Bytes of the intact files."""
    damage: Callable[[random.Random], None]
    read: Callable[[], object]


class TooSlow(BaseException):
    """Not an Exception, so that no library catches it."""


def wants_memory(error: BaseException | None) -> bool:
    """Whether a lack of memory caused an error, directly or through other errors."""
    while error is not None:
        if is_out_of_memory(error) or isinstance(error, OutOfMemory):
            return True
        error = error.__cause__ or error.__context__
    return False


def outcome(target: Target) -> str:
    """Outcome of a case: accepted, refused, or a description of the failure."""
    began = perf_counter()
    try:
        with limited(target.honest):
            target.read()
        verdict = "accepted"
    except (Exception, TooSlow) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        verdict = f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}: {error!s:.100}"
        if wants_memory(error):
            verdict = f"needs too much memory: {error!s:.100}"
        elif isinstance(error, KpruneError):
            verdict = "refused"
    return "too slow" if perf_counter() - began > PATIENCE else verdict


def require_limits() -> None:
    """Check the limits themselves: a reader that uses too much memory or time must fail."""

    def greedy() -> None:
        with reading(Path("greedy")):
            torch.zeros(2**30).add_(1.0)

    def slow() -> None:
        with reading(Path("slow")):
            time.sleep(2 * PATIENCE)

    verdicts = {outcome(Target("greedy", 1000, lambda dice: None, greedy))[:10]}
    verdicts.add(outcome(Target("slow", 1000, lambda dice: None, slow)))
    if verdicts != {"needs too ", "too slow"}:
        raise click.ClickException(f"the limits of time and memory do not hold here: {verdicts}")


def nasty(dice: random.Random) -> Any:
    return copy.deepcopy(dice.choice(NASTY))


def mutated(value: Any, dice: random.Random) -> Any:
    """A copy of a JSON value, changed in one to three places."""
    value = json.loads(json.dumps(value))
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        nodes = list(places(value))
        if not nodes:
            return nasty(dice)
        parent, key = dice.choice(nodes)
        change = dice.randrange(6)
        if change < 3:
            parent[key] = nasty(dice)
        elif change == 3:
            del parent[key]
        elif change == 4:
            others = [other[name] for other, name in nodes]
            parent[key] = json.loads(json.dumps(dice.choice(others)))
        elif isinstance(parent, list):
            parent.insert(dice.randrange(len(parent) + 1), dice.choice([parent[key], nasty(dice)]))
        else:
            parent[f"{key}{dice.choice(['', ' ', '_', 's'])}x"] = nasty(dice)
    return value


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value: the list or object, and the index or name."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(items):
        yield value, key
        yield from places(child)


def mutated_bytes(content: bytes, dice: random.Random) -> bytes:
    """A copy with bytes changed, deleted, inserted, repeated or cut off."""
    changed = bytearray(content)
    for _ in range(dice.choice((1, 1, 2, 4, 16))):
        at = dice.randrange(len(changed) + 1)
        change = dice.randrange(6)
        if change == 0:
            changed[at : at + 1] = bytes([dice.randrange(256)])
        elif change == 1:
            del changed[at : at + dice.choice((1, 2, 8, 64))]
        elif change == 2:
            changed[at:at] = dice.choice(
                (b"\0", b"\xff\xfe", b"\n", b'"', b"{", b"[" * 5000, b"\r", b"\xed\xa0\x80", b",")
            )
        elif change == 3:
            start = dice.randrange(len(changed) + 1)
            changed[at:at] = changed[start : start + dice.choice((1, 8, 64))]
        elif change == 4:
            del changed[at:]
        else:
            changed[at : at + 8] = dice.choice((2**40, 2**63 - 1, 0)).to_bytes(8, "little")
    return bytes(changed)


@contextmanager
def limited(honest: int) -> Iterator[None]:
    """Limit memory, to twice the intact size plus the allowance, and time within the context."""

    def stop(number: int, frame: Any) -> None:
        raise TooSlow(f"took more than {PATIENCE} seconds")

    status = Path("/proc/self/status").read_text()
    data = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_DATA, (data + 2 * honest + ROOM, hard))
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def model_and_batches() -> tuple[BertForSequenceClassification, list[dict[str, torch.Tensor]]]:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    model = BertForSequenceClassification(BertConfig(vocab_size=99, initializer_range=0.25, **sizes)).eval()
    return model, [{"input_ids": torch.randint(5, 99, (16, 24))}]


def run_in(folder: Path) -> Pruned:
    """A run with its journal in a folder, new or resumed."""
    return prune(*model_and_batches(), reduction=0.6, ridge=1e-4, align=1, checkpoint=folder)


def targets(place: Path) -> list[Target]:
    folder, run = place / "model", place / "run"
    run_in(run).model.save_pretrained(folder)
    config_file, weights_file = folder / "config.json", folder / "model.safetensors"
    index_file = folder / "model.safetensors.index.json"
    config, weights = json.loads(config_file.read_text()), weights_file.read_bytes()
    honest = weights_file.stat().st_size

    def load() -> None:
        Source(folder).load()

    def change_record(dice: random.Random) -> None:
        kind = dice.randrange(10)
        if kind < 7:
            record = mutated(config["quantization_config"], dice)
            config_file.write_text(json.dumps({**config, "quantization_config": record}))
        elif kind < 9:
            others = {"num_labels": 3, "transformers_weights": None, "auto_map": {"AutoConfig": "evil.C"}}
            config_file.write_text(json.dumps(mutated({**config, **(others if dice.randrange(2) else {})}, dice)))
        else:
            config_file.write_bytes(mutated_bytes(json.dumps(config).encode(), dice))

    def change_weights(dice: random.Random) -> None:
        config_file.write_text(json.dumps(config))
        index_file.unlink(missing_ok=True)
        weights_file.write_bytes(weights)
        if dice.randrange(2):
            header = int.from_bytes(weights[:8], "little") + 8
            weights_file.write_bytes(mutated_bytes(weights[:header], dice) + weights[header:])
        else:
            names = ["model.safetensors", "../model.safetensors", "/etc/passwd", "other.safetensors", "..", ""]
            index = {"metadata": {}, "weight_map": {"classifier.weight": dice.choice(names), "x": dice.choice(names)}}
            index_file.write_text(json.dumps(mutated(index, dice)))
            weights_file.rename(folder / "other.safetensors")

    tables = place / "tables"
    tables.mkdir()
    rows = [{"text": f'a sentence, number {n}, with "quotes" and ünïcode', "label": n} for n in range(5)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tables / "t.parquet")
    contents = {
        "t.jsonl": "\n".join(map(json.dumps, rows)).encode(),
        "t.csv": b'text,label\n"one, two",1\n"say ""so""",2\nthree,3\n',
        "t.tsv": b"text\tlabel\none two\t1\nthree\t2\n",
        "t.txt": "one line\nanother line\n\nünïcode\n".encode(),
        "t.parquet": (tables / "t.parquet").read_bytes(),
    }
    for name, content in contents.items():
        (tables / name).write_bytes(content)
    chosen = [tables / "t.jsonl"]

    def change_table(dice: random.Random) -> None:
        name = dice.choice(list(contents))
        chosen[0] = tables / name
        chosen[0].write_bytes(mutated_bytes(contents[name], dice))

    def read_table() -> None:
        path = chosen[0]
        if path.suffix == ".txt":
            read_lines(path)
        else:
            read_rows(str(path), ["text"] if path.stat().st_size % 2 else [])

    kept = {path.name: path.read_bytes() for path in run.iterdir()}

    def change_run(dice: random.Random) -> None:
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        for name, content in kept.items():
            (run / name).write_bytes(content)
        name = dice.choice(list(kept))
        (run / name).write_bytes(mutated_bytes(kept[name], dice))

    return [
        Target("record", honest, change_record, load),
        Target("weights", honest, change_weights, load),
        Target("tables", 10_000, change_table, read_table),
        Target("run", sum(map(len, kept.values())), change_run, lambda: run_in(run)),
    ]


@click.command()
@click.option("--cases", default=100_000, show_default=True, help="Of records and of tables; others: a fiftieth.")
@click.option("--seed", default=0, show_default=True)
@click.option("--target", "names", multiple=True, help="[default: all]")
@click.option("--keep", type=click.Path(path_type=Path), help="Copy the files of failed cases to this folder.")
@click.option("--out", type=click.Path(path_type=Path))
def main(cases: int, seed: int, names: tuple[str, ...], keep: Path | None, out: Path | None) -> None:
    """Count accepted, refused and failed cases."""
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    place = Path(tempfile.mkdtemp(prefix="fuzz-"))
    lines, broken = [], 0
    require_limits()
    everything = targets(place)
    for target in everything:
        target.read()  # intact files must be accepted
    for target in everything:
        if names and target.name not in names:
            continue
        dice = random.Random(seed)
        count = cases if target.name in ("record", "tables") else cases // 50
        found: Counter[str] = Counter()
        slowest = 0.0
        for case in range(count):
            target.damage(dice)
            began = perf_counter()
            verdict = outcome(target)
            slowest = max(slowest, perf_counter() - began)
            if verdict not in ("accepted", "refused") and verdict not in found:
                click.echo(f"{target.name}, case {case}: {verdict}", err=True)
                if keep is not None:
                    shutil.copytree(place, keep / f"{target.name}-{case}", dirs_exist_ok=True)
            found[verdict] += 1
        well = found["accepted"] + found["refused"]
        broken += count - well
        lines.append({"target": target.name, "cases": count, **found, "slowest_seconds": round(slowest, 2)})
        click.echo(json.dumps(lines[-1]))
    shutil.rmtree(place)
    if out:
        out.write_text(json.dumps({"targets": lines, "seed": seed, **provenance()}, indent=1) + "\n")
    if broken:
        raise click.ClickException(f"{broken} cases ended in something other than a KpruneError.")


if __name__ == "__main__":
    main()
