"""A saving for models that predict from the first token alone (classifiers, rerankers, `cls` pooling).

Above its attention, the topmost layer works token by token: the FFN and the backward pass need only the first token.
A family opts in by `Family.first_token_saving`. Without it nothing changes but the time of measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from kprune.models.sublayer import Sublayer


@contextmanager
def first_token_only(sublayers: Sequence[Sublayer]) -> Iterator[None]:
    """Restrict the topmost layer's sublayers to what a prediction from first tokens needs.

    Features are still computed for all tokens. Enter this context before any other hook on the sublayers.
    """
    with ExitStack() as stack:
        for sublayer in sublayers:
            is_ffn = sublayer.kind == "ffn"
            stack.enter_context(_narrow_ffn(sublayer) if is_ffn else _narrow_attention_backward(sublayer))
        yield


class _FirstTokenBackward(torch.autograd.Function):
    """Backward pass of a Linear, (examples, length, n), whose output gradient is zero except at first tokens."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, output: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return _pad_to(gradient[:, :1] @ weight, gradient.shape[1]), None, None


def _pad_to(first: Tensor, length: int) -> Tensor:
    """First tokens, (examples, 1, n), followed by zeros."""
    return nn.functional.pad(first, (0, 0, 0, length - 1))


@contextmanager
def _narrow_attention_backward(attention: Sublayer) -> Iterator[None]:
    """Backpropagate through the consumer at first tokens only."""

    def hook(consumer: Any, args: tuple[Tensor, ...], output: Tensor) -> Any:
        return _FirstTokenBackward.apply(args[0], output.detach(), consumer.weight)  # type: ignore[no-untyped-call]

    with attention.consumer.register_forward_hook(hook):
        yield


class _FeaturesMade(Exception):
    """Ends the pass that only makes features."""


@contextmanager
def _narrow_ffn(ffn: Sublayer) -> Iterator[None]:
    """Compute the FFN's output at first tokens, and zeros elsewhere.

    With gradients enabled, hooks see the features of all tokens first, without a graph.
    """
    lengths: list[int] = []

    def stop(consumer: nn.Module, args: Any) -> None:
        raise _FeaturesMade

    def narrow(module: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
        (stream,) = args
        if torch.is_grad_enabled():
            with torch.no_grad(), suppress(_FeaturesMade), ffn.consumer.register_forward_pre_hook(stop):
                ffn.consumer(module.forward(stream))  # a consumer inside the module is reached within forward
        lengths.append(stream.shape[1])
        return stream[:, :1].contiguous()  # a strided input would take another matrix product with gradients

    def widen(consumer: nn.Module, args: Any, output: Tensor) -> Tensor:
        return _pad_to(output, lengths.pop())

    with ffn.module.register_forward_pre_hook(narrow), ffn.consumer.register_forward_hook(widen):
        yield
