"""Tensors that are not needed all the time: kept on their device, in host memory, or on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor

from kprune.errors import KpruneError

HOST = "host"
Key = Any
TensorStore = MutableMapping[Key, Tensor]


def open_store(place: str | Path | None) -> TensorStore:
    """An empty store: on the tensors' own device (None), in host memory ("host"), or in a file of a folder."""
    if place is None:
        return {}
    return HostStore() if place == HOST else DiskStore(Path(place))


class _Offloaded(TensorStore):
    """A mapping in which only `[]` fetches a tensor."""

    def __init__(self) -> None:
        self._entries: dict[Key, Any] = {}

    def __delitem__(self, key: Key) -> None:
        del self._entries[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        self._entries.clear()


class HostStore(_Offloaded):
    """A GPU's tensors in the memory of its host."""

    def __setitem__(self, key: Key, tensor: Tensor) -> None:
        self._entries[key] = tensor.cpu(), tensor.device

    def __getitem__(self, key: Key) -> Tensor:
        tensor, device = self._entries[key]
        return cast(Tensor, tensor.to(device))


class DiskStore(_Offloaded):
    """Tensors in an unnamed file, which disappears with the process, however that ends.

    Read and written by calls, not mapped into memory: pages of a memory map count as resident memory of the process.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._offsets: dict[tuple[Key, int], int] = {}  # by key and size in bytes; a place is used again
        self._end = 0
        with self._disk():
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # open as long as the store

    def __setitem__(self, key: Key, tensor: Tensor) -> None:
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        offset = self._offsets.setdefault((key, len(content)), self._end)
        self._end = max(self._end, offset + len(content))
        with self._disk():
            self._file.seek(offset)
            self._file.write(content.data)
            self._file.flush()
        self._entries[key] = tensor.dtype, tensor.shape, tensor.device

    def __getitem__(self, key: Key) -> Tensor:
        dtype, shape, device = self._entries[key]
        content = torch.empty(shape.numel() * dtype.itemsize, dtype=torch.uint8)
        with self._disk():
            self._file.seek(self._offsets[key, len(content)])
            read = self._file.readinto(content.numpy().data)  # type: ignore[attr-defined]
        if read != len(content):
            raise KpruneError(f"{self._folder} returned {read} of {len(content)} bytes of a stream; check the disk.")
        return content.view(dtype).view(shape).to(device)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise KpruneError(
                f"cannot store streams in {self._folder}: {error.strerror}; choose another folder for --offload."
            ) from error
