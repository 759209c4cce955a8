"""Hooks on a sublayer's consumer: read its features, scale them, read gradients during the backward pass.

Callbacks get features of shape (examples, length, features). Some models flatten tokens before their FFN; `shape`,
(examples, length), restores the two dimensions there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from kprune.models.sublayer import Sublayer

FeatureCallback = Callable[[Sublayer, Tensor], Tensor | None]
GradientCallback = Callable[[Sublayer, Tensor, Tensor], None]


def by_example(tensor: Tensor, shape: Sequence[int] | None) -> Tensor:
    """(tokens, n) as (examples, length, n); a tensor that has three dimensions stays as it is."""
    return tensor if tensor.dim() == 3 or shape is None else tensor.unflatten(0, tuple(shape))


@contextmanager
def forward_as(module: nn.Module, function: Callable[..., Any]) -> Iterator[None]:
    """Replace a module's forward within the context."""
    previous = module.__dict__.get("forward")
    module.forward = function
    try:
        yield
    finally:
        if previous is None:
            del module.forward
        else:
            module.forward = previous


@contextmanager
def on_features(
    sublayers: Sequence[Sublayer], callback: FeatureCallback, shape: Sequence[int] | None = None
) -> Iterator[None]:
    """Call `callback(sublayer, features)` when features reach the consumer; a returned tensor replaces them."""
    with ExitStack() as stack:
        for sublayer in sublayers:

            def hook(module: nn.Module, args: tuple[Tensor, ...], sublayer: Sublayer = sublayer) -> Any:
                replaced = callback(sublayer, by_example(args[0], shape))
                return None if replaced is None else replaced.view_as(args[0])

            stack.enter_context(sublayer.consumer.register_forward_pre_hook(hook))
        yield


@contextmanager
def masked(masks: dict[Sublayer, Tensor], shape: Sequence[int] | None = None) -> Iterator[None]:
    """Scale each unit's features by its mask: (units,), or (examples, 1, units) for one mask per example."""

    def scale(sublayer: Sublayer, features: Tensor) -> Tensor:
        return features * masks[sublayer].repeat_interleave(sublayer.width, -1)

    with on_features(list(masks), scale, shape):
        yield


@contextmanager
def on_feature_grad(
    sublayers: Sequence[Sublayer], callback: GradientCallback, shape: Sequence[int] | None = None
) -> Iterator[None]:
    """Call `callback(sublayer, features, gradient)` with the features' gradient during the backward pass."""

    def watch(sublayer: Sublayer, features: Tensor) -> Tensor | None:
        if not torch.is_grad_enabled():
            return None
        if not features.requires_grad:  # the lowest sublayer: nothing below it is differentiated
            features = features.detach().requires_grad_()
        values = features.detach()  # a reference to `features` would keep the graph alive
        features.register_hook(lambda gradient: callback(sublayer, values, gradient))
        return features

    with on_features(sublayers, watch, shape):
        yield


@contextmanager
def on_output_grad(
    sublayers: Sequence[Sublayer], callback: GradientCallback, shape: Sequence[int] | None = None
) -> Iterator[None]:
    """Call `callback(sublayer, features, gradient)` with the gradient of the consumer's output during backward."""
    values: dict[Sublayer, Tensor] = {}

    def keep(sublayer: Sublayer, features: Tensor) -> None:
        values.setdefault(sublayer, features.detach())  # features of all tokens come before those of first tokens

    with on_features(sublayers, keep, shape), ExitStack() as stack:
        for sublayer in sublayers:

            def hook(module: nn.Module, args: Any, output: Tensor, sublayer: Sublayer = sublayer) -> Tensor:
                if not output.requires_grad:  # the lowest sublayer: nothing below it is differentiated
                    output = output.detach().requires_grad_()
                features = values.pop(sublayer)
                output.register_hook(lambda gradient: callback(sublayer, features, by_example(gradient, shape)))
                return output

            stack.enter_context(sublayer.consumer.register_forward_hook(hook))
        yield


@contextmanager
def on_residual(
    sublayer: Sublayer, callback: Callable[[Tensor], None], shape: Sequence[int] | None = None
) -> Iterator[None]:
    """Call `callback(stream)` with the residual stream at a sublayer."""

    def hook(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        callback(by_example(args[0] if args else kwargs["hidden_states"], shape))

    with sublayer.residual_input.register_forward_pre_hook(hook, with_kwargs=True):
        yield


@contextmanager
def on_consumer_output(
    sublayer: Sublayer, callback: Callable[[Tensor], None], shape: Sequence[int] | None = None
) -> Iterator[None]:
    """Call `callback(output)` with the consumer's output."""

    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        callback(by_example(output, shape))

    with sublayer.consumer.register_forward_hook(hook):
        yield
