"""Several processes on one run, as torchrun starts them: each has a share of the sample, and sums add up."""

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
PATIENCE = timedelta(hours=12)
"""How long a process waits for the others, which may be at work; one that has ended is missed at once."""


class Deserted(KpruneError):
    """Another process of the run has ended."""


def count() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's number, from 0."""
    return dist.get_rank() if count() > 1 else 0


def launched_rank() -> int:
    """The number that a launcher gave this process, before or after the processes have met."""
    return int(os.environ.get("RANK", "0")) if launched() > 1 else 0


def launched() -> int:
    """How many processes a launcher has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def own_device(device: str | None) -> str | None:
    """A device's name; of a machine's GPUs, the one that is this process's own."""
    name = device or ("cuda" if torch.cuda.is_available() else None)
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if launched() > 1 and name == "cuda" else device


@contextmanager
def joined(device: str | None = None) -> Iterator[None]:
    """Meet the other processes that a launcher (torchrun, accelerate) has started, if there are any."""
    if count() > 1 or launched() == 1:
        yield
        return
    on_gpu = device is not None and device.startswith("cuda")
    try:
        if on_gpu:
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if on_gpu else "gloo", timeout=PATIENCE)
    except (ValueError, RuntimeError, AssertionError, AttributeError) as error:  # the last by a torch without CUDA
        raise KpruneError(f"the processes could not meet ({error}); start them with torchrun, one per GPU.") from error
    try:
        yield
        everyone(True)  # nobody leaves while another still needs an answer
    finally:
        dist.destroy_process_group()


def share(items: Sequence[T]) -> list[T]:
    """This process's part of a list that all have."""
    return list(items[rank() :: count()])


def add_up(tensors: Iterable[Tensor]) -> None:
    """Replace every tensor by its sum over the processes."""
    if count() > 1:
        for tensor in tensors:
            with _reaching():
                dist.all_reduce(tensor, dist.ReduceOp.SUM)


def everyone(flag: bool) -> bool:
    """Whether something is so in every process."""
    if count() == 1:
        return flag
    told = torch.tensor(int(flag), device=_device())
    with _reaching():
        dist.all_reduce(told, dist.ReduceOp.MIN)
    return bool(told)


def agreed(tensor: Tensor) -> Tensor:
    """The first process's tensor, for all: rounding may differ between machines."""
    if count() == 1:
        return tensor
    told = tensor.to(_device(), torch.uint8 if tensor.dtype == torch.bool else tensor.dtype).contiguous()
    with _reaching():
        dist.broadcast(told, 0)
    return told.to(tensor.device, tensor.dtype)


@contextmanager
def _reaching() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise Deserted("another process of this run has ended; its own message says why.") from error


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
