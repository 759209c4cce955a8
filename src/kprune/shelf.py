"""Tensors that are not needed all the time: kept where they are, in the host's memory, or on a disk."""

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
Shelf = MutableMapping[Key, Tensor]


def shelf(place: str | Path | None) -> Shelf:
    """An empty shelf: where the tensors are (None), in the host's memory ("host"), or in a folder's file."""
    if place is None:
        return {}
    return InHost() if place == HOST else OnDisk(Path(place))


class _Elsewhere(Shelf):
    """What all shelves have but a dict: only `[]` fetches a tensor."""

    def __init__(self) -> None:
        self._kept: dict[Key, Any] = {}

    def __delitem__(self, key: Key) -> None:
        del self._kept[key]

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def __iter__(self) -> Iterator[Key]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        self._kept.clear()


class InHost(_Elsewhere):
    """Tensors of a GPU in the memory of its host."""

    def __setitem__(self, key: Key, tensor: Tensor) -> None:
        self._kept[key] = tensor.cpu(), tensor.device

    def __getitem__(self, key: Key) -> Tensor:
        tensor, device = self._kept[key]
        return cast(Tensor, tensor.to(device))


class OnDisk(_Elsewhere):
    """Tensors in a file without a name, which is gone with its process, however that ends."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._rooms: dict[tuple[Key, int], int] = {}  # where a tensor of so many bytes is, or was
        self._end = 0
        with self._reaching():
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # open as long as the shelf

    def __setitem__(self, key: Key, tensor: Tensor) -> None:
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        room = self._rooms.setdefault((key, len(content)), self._end)
        self._end = max(self._end, room + len(content))
        with self._reaching():
            self._file.seek(room)
            self._file.write(content.data)
            self._file.flush()
        self._kept[key] = tensor.dtype, tensor.shape, tensor.device

    def __getitem__(self, key: Key) -> Tensor:
        dtype, shape, device = self._kept[key]
        content = torch.empty(shape.numel() * dtype.itemsize, dtype=torch.uint8)
        with self._reaching():
            self._file.seek(self._rooms[key, len(content)])
            read = self._file.readinto(content.numpy().data)  # type: ignore[attr-defined]
        if read != len(content):
            raise KpruneError(f"{self._folder} gave back {read} of {len(content)} bytes of a stream; check the disk.")
        return content.view(dtype).view(shape).to(device)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise KpruneError(
                f"cannot keep streams in {self._folder}: {error.strerror}; choose another place to offload."
            ) from error
