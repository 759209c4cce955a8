"""The journal of a run: what is finished. Kept in a folder, it lets the same run continue after a kill."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from kprune.errors import BadCheckpoint, KpruneError
from kprune.models.sublayer import Sublayer
from kprune.pruning.measurement import Measured
from kprune.pruning.result import Outcome, Step
from kprune.pruning.teacher import TeacherPredictions
from kprune.runtime.distributed import all_true, rank, world_size

RUN = "run.json"
RESULT = "result.json"
PREDICTIONS = "predictions"
HEALING = "healing"
"""The journal of a healing, and the folder that it is kept in, inside that of the pruning."""
NAMES = {"kprune": "kprune's version"}
COMPARED_BY_HASH = {
    "model": "the model's weights",
    "teacher": "the dense model's weights",
    "sample": "the sample's tokens",
    "prices": "the prices of units",
}


def process_folder(folder: str | Path) -> Path:
    """The journal's folder; with several processes, each has its own inside."""
    return Path(folder) / f"process-{rank()}-of-{world_size()}" if world_size() > 1 else Path(folder)


def fingerprint(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """A hash of named tensors; equal hashes mean equal bits."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class Journal:
    """Finished sublayers in memory: an attempt that runs out of memory does not repeat them."""

    def __init__(self) -> None:
        self._outcomes: dict[int, Outcome] = {}

    def recall(self, number: int, target: Sublayer) -> Outcome | None:
        """The outcome of a sublayer, if all processes have it."""
        outcome = self._outcomes.get(number) or self._read_outcome(number, target)
        return outcome if all_true(outcome is not None) else None

    def add(self, number: int, outcome: Outcome) -> None:
        """Keep the outcome of a sublayer."""
        self._outcomes[number] = outcome

    def recall_measured(self, number: int, sublayers: Sequence[Sublayer], tokens: Sequence[int]) -> Any:
        """The measurement made at a sublayer, if it was kept and has the same batches."""
        return None

    def add_measured(self, number: int, measured: Sequence[Measured]) -> None:
        """Keep a measurement that serves several sublayers."""

    def restore_predictions(self, predictions: TeacherPredictions) -> None:
        """Give the teacher's predictions of the first run to this one."""

    def add_predictions(self, predictions: TeacherPredictions) -> None:
        """Keep the teacher's predictions: another pass could differ in the last bit."""

    def read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The tensors and details of an entry; None if there is none."""
        return None

    def write(self, name: str, tensors: dict[str, Tensor], details: dict[str, Any]) -> None:
        """Keep an entry, if the journal is on disk."""

    def _read_outcome(self, number: int, target: Sublayer) -> Outcome | None:
        return None


class FolderJournal(Journal):
    """A journal on disk, one file per entry; each file is complete or absent."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self._has_predictions = False  # of the present batches

    @classmethod
    @contextmanager
    def open(cls, folder: Path, identity: dict[str, Any]) -> Iterator[FolderJournal]:
        """The journal in a folder, locked for this run while it is open."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _require_own(folder)
            with (folder / RUN).open("a+", encoding="utf-8") as file:
                _lock(file, folder)
                _require_same(file, folder, identity)
                yield cls(folder)
        except OSError as error:
            raise KpruneError(
                f"cannot keep a checkpoint in {folder}: {error.strerror}; choose another folder."
            ) from error

    def add(self, number: int, outcome: Outcome) -> None:
        super().add(number, outcome)
        tensors = {"kept": torch.tensor(outcome.step.kept, dtype=torch.int64), "weight": outcome.weight}
        if outcome.bias is not None:
            tensors["bias"] = outcome.bias
        step = {name: value for name, value in asdict(outcome.step).items() if name != "kept"}
        self.write(f"step-{number:03}", tensors, {"step": step, "method_state": outcome.method_state})

    def _read_outcome(self, number: int, target: Sublayer) -> Outcome | None:
        name = f"step-{number:03}"
        entry = self.read(name)
        if entry is None:
            return None
        tensors, details = entry
        try:
            kept = tuple(tensors["kept"].tolist())
            step = Step(**{**details["step"], "kept": kept})
            outcome = Outcome(step, tensors["weight"], tensors.get("bias"), dict(details["method_state"]))
        except (KeyError, TypeError) as error:
            raise self._damaged(name) from error
        if not _fits(outcome, target):
            raise self._damaged(name)
        return outcome

    def recall_measured(
        self, number: int, sublayers: Sequence[Sublayer], tokens: Sequence[int]
    ) -> list[Measured] | None:
        name = f"measured-{number:03}"
        entry = self.read(name)
        if entry is None:
            return None
        tensors, details = entry
        device = sublayers[0].consumer.weight.device
        measured = []
        try:
            for place, sublayer in enumerate(sublayers):
                weights = [tensors[f"{place}.{n}"].to(device) for n in range(details["batches"])] or None
                measured.append(Measured(tensors[f"{place}"].to(device), weights))
                if tensors[f"{place}"].shape != (sublayer.units,):
                    raise self._damaged(name)
        except (KeyError, TypeError) as error:
            raise self._damaged(name) from error
        weights = measured[0].token_weights
        if weights is not None and [len(each) for each in weights] != list(tokens):
            return None
        return measured

    def add_measured(self, number: int, measured: Sequence[Measured]) -> None:
        tensors = {f"{place}": each.scores for place, each in enumerate(measured)}
        for place, each in enumerate(measured):
            tensors |= {f"{place}.{n}": weights for n, weights in enumerate(each.token_weights or [])}
        self.write(f"measured-{number:03}", tensors, {"batches": len(measured[0].token_weights or [])})

    def restore_predictions(self, predictions: TeacherPredictions) -> None:
        entry = self.read(PREDICTIONS)
        self._has_predictions = entry is not None and predictions.restore(entry[0])

    def add_predictions(self, predictions: TeacherPredictions) -> None:
        if not self._has_predictions:
            state = predictions.state()
            if state is not None:
                self.write(PREDICTIONS, state, {})
                self._has_predictions = True

    def add_result(self, staged: Path, out: Path) -> None:
        """Record the hash of a finished model folder, just before it is renamed to `out`."""
        result = {"folder": str(out.resolve()), "digest": hash_weights(staged)}
        (self.folder / RESULT).write_text(json.dumps(result), encoding="utf-8")

    def has_written(self, out: Path) -> bool:
        """Whether `out` is this run's result: the run was killed after it wrote it."""
        try:
            result = json.loads((self.folder / RESULT).read_text("utf-8"))
            return bool(result == {"folder": str(out.resolve()), "digest": hash_weights(out)})
        except (OSError, ValueError, RecursionError):
            return False

    def remove(self) -> None:
        """Delete the journal's files, and the folder if it is empty then."""
        if (self.folder / HEALING).is_dir():
            FolderJournal(self.folder / HEALING).remove()
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == RESULT):  # the result last
            if _is_own(path.name) and path.is_file():
                path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty, or not removable
            self.folder.rmdir()

    def read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The tensors and details of an entry; None if there is none."""
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            return None
        try:
            tensors = load(path.read_bytes())
            digest = bytes(tensors.pop("digest").numpy()).decode()
            if digest != fingerprint(sorted(tensors.items())):
                raise self._damaged(name)
            details = json.loads(bytes(tensors.pop("details").numpy()))
        except (SafetensorError, KeyError, ValueError, RecursionError) as error:
            raise self._damaged(name) from error
        return tensors, details

    def write(self, name: str, tensors: dict[str, Tensor], details: dict[str, Any]) -> None:
        """Write an entry to disk completely, then give it its name."""
        content = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        content["details"] = _bytes_of(json.dumps(details))
        content["digest"] = _bytes_of(fingerprint(sorted(content.items())))
        partial = self.folder / f"{name}.safetensors.partial"
        with partial.open("wb") as file:
            file.write(save(content))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.folder / f"{name}.safetensors")

    def _damaged(self, name: str) -> BadCheckpoint:
        path = self.folder / f"{name}.safetensors"
        return BadCheckpoint(f"{path} is damaged, or from another run; delete {self.folder} to start again.")


def hash_weights(folder: Path) -> str:
    """A hash of all weights in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")):
        digest.update(str(path.relative_to(folder)).encode())
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def _fits(outcome: Outcome, target: Sublayer) -> bool:
    """Whether an outcome belongs to a sublayer, by its shapes."""
    step, kept = outcome.step, outcome.step.kept
    return (
        (step.layer, step.kind, step.units) == (target.index, target.kind, target.units)
        and list(kept) == sorted(set(kept) & set(range(target.units)))
        and outcome.weight.shape == (target.consumer.out_features, len(kept) * target.width)
        and (outcome.bias is None) == (target.consumer.bias is None)
    )


def _require_own(folder: Path) -> None:
    foreign = sorted(path.name for path in folder.iterdir() if not _is_own(path.name))
    if foreign:
        raise KpruneError(f"{folder} contains {foreign[0]}, which is not a checkpoint's file; choose another folder.")


def _is_own(name: str) -> bool:
    pattern = rf"((step|measured|training)-\d{{3,}}|{PREDICTIONS}|{HEALING})\.safetensors(\.partial)?"
    return name in (RUN, RESULT, HEALING) or re.fullmatch(pattern, name) is not None


def _lock(file: IO[str], folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise KpruneError(f"another run is using {folder}; wait until it ends, or choose another folder.") from error


def _require_same(file: IO[str], folder: Path, identity: dict[str, Any]) -> None:
    """Write the run's identity into an empty file, or compare it with the identity there."""
    file.seek(0)
    try:
        content = file.read()
        is_cut = not content.endswith("\n") and json.dumps(identity).startswith(content)  # killed while writing
        there = {} if is_cut else json.loads(content)
        if not isinstance(there, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{folder / RUN} is not a checkpoint file ({error}); choose another folder.") from error
    if is_cut:
        for path in folder.iterdir():
            if path.name != RUN and path.is_file():
                path.unlink()
        file.truncate(0)
        file.write(json.dumps(identity) + "\n")
        file.flush()
        os.fsync(file.fileno())
        return
    for name in [*identity, *there]:
        ours, theirs = identity.get(name), there.get(name)
        if ours != theirs:
            values = "differ" if name in COMPARED_BY_HASH else f"is {theirs} there and {ours} here"
            raise KpruneError(
                f"{folder} belongs to another run: {({**NAMES, **COMPARED_BY_HASH}).get(name, name)} {values}; "
                "choose another folder, or delete it to start again."
            )


def _bytes_of(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
