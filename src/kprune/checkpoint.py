"""A run that may be stopped at any moment: what is finished is on the disk, and the same run goes on from there."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from kprune.errors import BadCheckpoint, KpruneError
from kprune.measure import Measured
from kprune.pruned import Step
from kprune.sublayer import Sublayer

RUN = "run.json"
RESULT = "result.json"


@dataclass(frozen=True)
class Done:
    """A sublayer that was finished."""

    step: Step
    weight: Tensor
    """The refitted consumer's."""
    bias: Tensor | None


def fingerprint(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """A text that two lists of named tensors share if they are equal bit for bit."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def digest_of(folder: Path) -> str:
    """Of all weights in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")):
        digest.update(str(path.relative_to(folder)).encode())
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()


@contextmanager
def checkpoint(folder: Path, identity: dict[str, Any]) -> Iterator[Checkpoint]:
    """The checkpoint in a folder, this run's alone while it is open."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _require_own(folder)
        with (folder / RUN).open("a+", encoding="utf-8") as file:
            _lock(file, folder)
            _require_same(file, folder, identity)
            yield Checkpoint(folder)
    except OSError as error:
        raise KpruneError(f"cannot keep a checkpoint in {folder}: {error.strerror}; choose another folder.") from error


def _require_own(folder: Path) -> None:
    strangers = sorted(path.name for path in folder.iterdir() if not _is_own(path.name))
    if strangers:
        raise KpruneError(f"{folder} holds {strangers[0]}, which is no checkpoint's; choose another folder.")


def _lock(file: IO[str], folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise KpruneError(f"another run is using {folder}; wait until it ends, or choose another folder.") from error


def _require_same(file: IO[str], folder: Path, identity: dict[str, Any]) -> None:
    """Write what a run is into an empty file, or compare it with what is there."""
    file.seek(0)
    try:
        content = file.read()
        is_cut = not content.endswith("\n") and json.dumps(identity).startswith(content)  # by a kill, as it was written
        there = {} if is_cut else json.loads(content)
        if not isinstance(there, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{folder / RUN} is not a checkpoint's ({error}); choose another folder.") from error
    if is_cut:
        for path in folder.iterdir():
            if path.name != RUN:
                path.unlink()
        file.truncate(0)
        file.write(json.dumps(identity) + "\n")
        file.flush()
        os.fsync(file.fileno())
        return
    for name in [*identity, *there]:
        ours, theirs = identity.get(name), there.get(name)
        if ours != theirs:
            told = "differ" if name in _TOLD else f"is {theirs} there and {ours} here"
            raise KpruneError(
                f"{folder} belongs to another run: {_TOLD.get(name, name)} {told}; "
                "choose another folder, or delete that one to start anew."
            )


_TOLD = {"model": "the model's weights", "sample": "the sample's tokens", "prices": "the prices of units"}


def _text(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def _is_own(name: str) -> bool:
    return name in (RUN, RESULT) or re.fullmatch(r"(step|measured)-\d{3,}\.safetensors(\.partial)?", name) is not None


class Checkpoint:
    """What is finished, a file each, whole or absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def step(self, number: int, target: Sublayer) -> Done | None:
        """What became of a sublayer, if it is finished."""
        found = self._read(f"step-{number:03}")
        if found is None:
            return None
        tensors, told = found
        try:
            kept = tuple(tensors["kept"].tolist())
            done = Done(Step(**{**told, "kept": kept}), tensors["weight"], tensors.get("bias"))
            is_sound = (
                (done.step.layer, done.step.kind, done.step.units) == (target.index, target.kind, target.units)
                and list(kept) == sorted(set(kept) & set(range(target.units)))
                and done.weight.shape == (target.consumer.out_features, len(kept) * target.width)
                and (done.bias is None) == (target.consumer.bias is None)
            )
        except (KeyError, TypeError) as error:
            raise self._damaged(f"step-{number:03}") from error
        if not is_sound:
            raise self._damaged(f"step-{number:03}")
        return done

    def add_step(self, number: int, done: Done) -> None:
        tensors = {"kept": torch.tensor(done.step.kept, dtype=torch.int64), "weight": done.weight}
        if done.bias is not None:
            tensors["bias"] = done.bias
        told = {name: value for name, value in asdict(done.step).items() if name != "kept"}
        self._write(f"step-{number:03}", tensors, told)

    def measured(self, number: int, sublayers: Sequence[Sublayer], tokens: Sequence[int]) -> list[Measured] | None:
        """What was measured at a sublayer, of it and those above, if it was kept of batches of so many tokens each."""
        found = self._read(f"measured-{number:03}")
        if found is None:
            return None
        tensors, told = found
        device = sublayers[0].consumer.weight.device
        measured = []
        try:
            for place, sublayer in enumerate(sublayers):
                weights = [tensors[f"{place}.{n}"].to(device) for n in range(told["batches"])] or None
                measured.append(Measured(tensors[f"{place}"].to(device), weights))
                if tensors[f"{place}"].shape != (sublayer.units,):
                    raise self._damaged(f"measured-{number:03}")
        except (KeyError, TypeError) as error:
            raise self._damaged(f"measured-{number:03}") from error
        weights = measured[0].token_weights
        if weights is not None and [len(each) for each in weights] != list(tokens):
            return None
        return measured

    def add_measured(self, number: int, measured: Sequence[Measured]) -> None:
        tensors = {f"{place}": each.scores for place, each in enumerate(measured)}
        for place, each in enumerate(measured):
            tensors |= {f"{place}.{n}": weights for n, weights in enumerate(each.token_weights or [])}
        self._write(f"measured-{number:03}", tensors, {"batches": len(measured[0].token_weights or [])})

    def add_result(self, weights: Path, out: Path) -> None:
        """Note that what a folder holds is this run's result, and is about to get its name."""
        told = {"folder": str(out.resolve()), "digest": digest_of(weights)}
        (self.folder / RESULT).write_text(json.dumps(told), encoding="utf-8")

    def has_written(self, out: Path) -> bool:
        """Whether a folder holds this run's result: it was killed after that, and before it was tidied up."""
        try:
            told = json.loads((self.folder / RESULT).read_text("utf-8"))
            return bool(told == {"folder": str(out.resolve()), "digest": digest_of(out)})
        except (OSError, ValueError, RecursionError):
            return False

    def remove(self) -> None:
        """Take the files away, once nobody needs them; the folder too, if nothing else is in it."""
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == RESULT):  # that one last
            if _is_own(path.name):
                path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty, or not ours to remove
            self.folder.rmdir()

    def _read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            return None
        try:
            content = path.read_bytes()
            tensors = load(content)
            digest = bytes(tensors.pop("digest").numpy()).decode()
            if digest != fingerprint(sorted(tensors.items())):
                raise self._damaged(name)
            told = json.loads(bytes(tensors.pop("told").numpy()))
        except (SafetensorError, KeyError, ValueError, RecursionError) as error:
            raise self._damaged(name) from error
        return tensors, told

    def _write(self, name: str, tensors: dict[str, Tensor], told: dict[str, Any]) -> None:
        """Whole on the disk before it has its name."""
        content = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        content["told"] = _text(json.dumps(told))
        content["digest"] = _text(fingerprint(sorted(content.items())))
        partial = self.folder / f"{name}.safetensors.partial"
        with partial.open("wb") as file:
            file.write(save(content))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.folder / f"{name}.safetensors")

    def _damaged(self, name: str) -> BadCheckpoint:
        path = self.folder / f"{name}.safetensors"
        return BadCheckpoint(f"{path} is damaged, or of another run; delete {self.folder} to start anew.")
