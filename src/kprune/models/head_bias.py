"""A bias with one entry per head that all layers share: each layer reads the entries of the heads that it kept."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from kprune.models.sublayer import Sublayer

ATTRIBUTE = "kprune_head_bias"


class HeadBias:
    """Forward pre-hook that selects the kept heads in one argument of an attention module.

    The argument has shape (examples, dense heads, …). `copy.deepcopy` of a model copies the hook.
    """

    def __init__(self, module: nn.Module, argument: str, kept: Sequence[int]) -> None:
        self.argument = argument
        self.position = list(inspect.signature(module.forward).parameters).index(argument)
        self.kept = list(kept)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.argument in kwargs:
            return args, {**kwargs, self.argument: self._select(kwargs[self.argument])}
        if len(args) <= self.position:
            return args, kwargs
        before, after = args[: self.position], args[self.position + 1 :]
        return (*before, self._select(args[self.position]), *after), kwargs

    def _select(self, bias: Tensor | None) -> Tensor | None:
        return None if bias is None else bias[:, self.kept]


def kept_heads(sublayer: Sublayer) -> list[int]:
    """Numbers, in the dense model, of the heads that a sublayer has left."""
    hook = getattr(sublayer.module, ATTRIBUTE, None)
    return list(range(sublayer.units)) if hook is None else list(hook.kept)


def keep_heads(sublayer: Sublayer, heads: Sequence[int]) -> None:
    """Let an attention module read its shared bias at the heads with these numbers in the dense model."""
    module, argument = sublayer.module, sublayer.block.head_bias
    hook = getattr(module, ATTRIBUTE, None)
    if hook is not None:
        hook.kept = list(heads)
    elif argument is not None:
        hook = HeadBias(module, argument, heads)
        setattr(module, ATTRIBUTE, hook)
        module.register_forward_pre_hook(hook, with_kwargs=True)
