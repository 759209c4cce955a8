"""Devices and threads."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import PreTrainedModel

from kprune.errors import KpruneError


def on_device(model: PreTrainedModel, device: str | None) -> PreTrainedModel:
    """The model, moved to a device; without a name, to a GPU if there is one."""
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model.to(name)  # type: ignore[arg-type]
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise KpruneError(f"device {name!r} cannot be used ({reason}); leave --device out, or pass cpu.") from error
    return model


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Set torch's number of threads within the context; None leaves it."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_name(device: torch.device) -> str:
    """Model name of the GPU or CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a type without `torch.`, such as float16."""
    return str(dtype).removeprefix("torch.")


def half_precision_note(model: PreTrainedModel, name: str = "The model") -> str:
    """A sentence for a model on a CPU whose weights are in half precision; empty for any other."""
    if model.device.type != "cpu" or model.dtype == torch.float32:
        return ""
    return (
        f"{name} is in {dtype_name(model.dtype)}, which is slow on a CPU: load it with dtype=torch.float32 there, "
        "or write it with --dtype float32."
    )


def count_threads(threads: int) -> str:
    """A number of threads in words: `1 thread`, `2 threads`."""
    return f"{threads} thread{'' if threads == 1 else 's'}"
