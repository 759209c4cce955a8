"""Output folders that are complete or absent: staging, replacement, locks."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from kprune.checkpoints.files import GRAPH_FILES, MODELING_FILE, SIDE_SUFFIXES
from kprune.errors import KpruneError


@contextmanager
def staged_folder(folder: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a staging folder; rename it to `folder` when the context ends without an error.

    After an error, the staging folder is removed and an old `folder` is left unchanged.
    """
    remove_leftovers(folder)
    require_writable(folder, overwrite=overwrite)
    folder = folder.resolve()
    staging = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    retired = staging.with_suffix(".retired")
    lock = None
    try:
        staging.mkdir(parents=True)
        lock = _try_lock(staging)
        yield staging
        if folder.exists() and not overwrite:
            raise KpruneError(f"{folder} was written by another run meanwhile; choose another folder.")
        if folder.exists():
            folder.rename(retired)
        staging.rename(folder)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise KpruneError(f"could not write {folder}: {reason}; nothing was left there. Choose another one.") from error
    finally:
        if retired.exists() and not folder.exists():
            retired.rename(folder)
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(retired, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def require_writable(folder: Path, *, overwrite: bool) -> None:
    """Raise if `folder` cannot be created, or exists and may not be replaced.

    With `overwrite`, only a folder that holds a checkpoint and nothing else may be replaced.
    """
    _require_writable_parent(folder)
    if not folder.exists():
        return
    if not overwrite:
        raise KpruneError(
            f"{folder} exists; choose another folder, or pass --overwrite (overwrite=True) to replace it."
        )
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else [folder]
    weights = [path for path in files if path.suffix == ".safetensors" or path.name in GRAPH_FILES]
    known = {*SIDE_SUFFIXES, ".md"}
    foreign = [
        path for path in files if path.suffix not in known and path not in weights and path.name != MODELING_FILE
    ]
    if foreign or (files and not weights):
        reason = f"it holds {foreign[0].name}" if foreign else "it holds no weights"
        raise KpruneError(f"{folder} is not just a checkpoint ({reason}) and is not replaced; choose another folder.")


def _require_writable_parent(folder: Path) -> None:
    existing = folder
    try:
        folder = folder.resolve()
        existing = next(path for path in (*folder.parents, folder) if path.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise KpruneError(f"cannot write to {existing}: {error.strerror}; choose another folder.") from error


def remove_leftovers(folder: Path) -> None:
    """Remove staging folders of killed runs; restore a folder that such a run had moved away."""
    folder = folder.resolve()
    if not os.access(folder.parent, os.R_OK | os.X_OK):
        return
    pattern = re.compile(rf"\.{re.escape(folder.name)}\.\d+\.(partial|retired)")
    leftovers = [path for path in folder.parent.iterdir() if pattern.fullmatch(path.name)]
    for staging in (path for path in leftovers if path.suffix == ".partial"):
        lock = _try_lock(staging)
        if lock is not None:  # no live process writes there
            shutil.rmtree(staging, ignore_errors=True)
            os.close(lock)
    for retired in (path for path in leftovers if path.suffix == ".retired"):
        if retired.with_suffix(".partial").exists():
            continue
        if folder.exists():
            shutil.rmtree(retired, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):  # another process restored it first
                retired.rename(folder)


def _try_lock(folder: Path) -> int | None:
    """A descriptor that locks `folder` until it is closed; None if another process holds the lock."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
