"""Several processes on one run, as torchrun starts them: each has a shard of the sample, and sums are all-reduced."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from kprune.errors import KpruneError

T = TypeVar("T")
TIMEOUT = timedelta(hours=12)
"""How long a collective call waits for slower processes; a process that has ended is noticed at once."""


class PeerFailed(KpruneError):
    """Another process of the run has ended."""


def world_size() -> int:
    """Number of processes in the process group; 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def launched_rank() -> int:
    """Rank that the launcher assigned, also before the process group exists."""
    return int(os.environ.get("RANK", "0")) if launched_processes() > 1 else 0


def launched_processes() -> int:
    """Number of processes that the launcher started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_device(device: str | None) -> str | None:
    """Device name; with several processes, `cuda` becomes this process's own GPU."""
    name = device or ("cuda" if torch.cuda.is_available() else None)
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if launched_processes() > 1 and name == "cuda" else device


@contextmanager
def process_group(device: str | None = None) -> Iterator[None]:
    """Join the processes that a launcher (torchrun, accelerate) has started, if there are any."""
    if world_size() > 1 or launched_processes() == 1:
        yield
        return
    on_gpu = device is not None and device.startswith("cuda")
    try:
        if on_gpu:
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    except (ValueError, RuntimeError, AssertionError, AttributeError) as error:  # the last: torch without CUDA
        raise KpruneError(
            f"cannot connect the processes ({error}); start them with torchrun, one process per GPU."
        ) from error
    try:
        yield
        barrier()  # no process leaves while another still waits for it
    finally:
        dist.destroy_process_group()


def shard(items: Sequence[T]) -> list[T]:
    """This process's part of a list that all processes have."""
    return list(items[rank() :: world_size()])


def all_reduce_sum(tensors: Iterable[Tensor]) -> None:
    """Replace every tensor by its sum over the processes."""
    if world_size() > 1:
        for tensor in tensors:
            with _collective():
                dist.all_reduce(tensor, dist.ReduceOp.SUM)


def all_true(flag: bool) -> bool:
    """Whether the flag is true in every process."""
    if world_size() == 1:
        return flag
    shared = torch.tensor(int(flag), device=_device())
    with _collective():
        dist.all_reduce(shared, dist.ReduceOp.MIN)
    return bool(shared)


def barrier() -> None:
    """Wait until every process is here."""
    all_true(True)


def broadcast(tensor: Tensor) -> Tensor:
    """The tensor of process 0, in every process: rounding may differ between machines."""
    if world_size() == 1:
        return tensor
    shared = tensor.to(_device(), torch.uint8 if tensor.dtype == torch.bool else tensor.dtype).contiguous()
    with _collective():
        dist.broadcast(shared, 0)
    return shared.to(tensor.device, tensor.dtype)


@contextmanager
def _collective() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PeerFailed("another process of this run has ended; its own message says why.") from error


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
