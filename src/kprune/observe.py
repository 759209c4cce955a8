"""The only hooks: look at a sublayer's features, scale them, feel their gradients; start a pass at any layer.

Everything below the sublayer at hand is final, so its output is kept and passes start there: the model's own forward
runs with its list of layers exchanged for a replay of the kept stream and the layers still wanted. Masks, positions
and the task's head stay the model's own business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kprune.families import family_of
from kprune.sample import Batch
from kprune.sublayer import Sublayer


@contextmanager
def observe(sublayers: Sequence[Sublayer], see: Callable[[Sublayer, Tensor], Tensor | None]) -> Iterator[None]:
    """Call `see` with each sublayer and its features as they reach the consumer; what it returns replaces them."""
    with ExitStack() as stack:
        for sublayer in sublayers:

            def hook(module: nn.Module, args: tuple[Tensor, ...], sublayer: Sublayer = sublayer) -> Any:
                return see(sublayer, args[0])

            stack.callback(sublayer.consumer.register_forward_pre_hook(hook).remove)
        yield


@contextmanager
def masked(masks: dict[Sublayer, Tensor]) -> Iterator[None]:
    """Scale each unit's features by its mask: (units,), or (examples, 1, units) for a mask of each example's own."""
    with observe(
        list(masks), lambda sublayer, features: features * masks[sublayer].repeat_interleave(sublayer.width, -1)
    ):
        yield


@contextmanager
def gradients(sublayers: Sequence[Sublayer], feel: Callable[[Sublayer, Tensor, Tensor], None]) -> Iterator[None]:
    """Call `feel` with each sublayer, its features and their gradient, while the backward pass goes by."""

    def see(sublayer: Sublayer, features: Tensor) -> Tensor | None:
        if not torch.is_grad_enabled():  # made to be seen, and no more
            return None
        if not features.requires_grad:  # the lowest sublayer: nothing below it is differentiated
            features = features.detach().requires_grad_()
        seen = features.detach()  # the hook must not hold on to the graph that holds on to it
        features.register_hook(lambda gradient: feel(sublayer, seen, gradient))
        return features

    with observe(sublayers, see):
        yield


@contextmanager
def output_gradients(sublayers: Sequence[Sublayer], feel: Callable[[Sublayer, Tensor, Tensor], None]) -> Iterator[None]:
    """Call `feel` with each sublayer, its features and the gradient of its consumer's output, on the way back."""
    seen: dict[Sublayer, Tensor] = {}

    def see(sublayer: Sublayer, features: Tensor) -> None:
        seen.setdefault(sublayer, features.detach())  # those of all tokens come before those of first tokens

    with observe(sublayers, see), ExitStack() as stack:
        for sublayer in sublayers:

            def hook(module: nn.Module, args: Any, output: Tensor, sublayer: Sublayer = sublayer) -> Tensor:
                if not output.requires_grad:  # the lowest sublayer: nothing below it is differentiated
                    output = output.detach().requires_grad_()
                features = seen.pop(sublayer)
                output.register_hook(lambda gradient: feel(sublayer, features, gradient))
                return output

            stack.callback(sublayer.consumer.register_forward_hook(hook).remove)
        yield


class _FeltAtFirst(torch.autograd.Function):
    """The way back of a Linear, (examples, length, n), of whose output only the first tokens are felt."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, output: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return _first_of(gradient[:, :1] @ weight, gradient.shape[1]), None, None


def _first_of(first: Tensor, length: int) -> Tensor:
    """First tokens, (examples, 1, n), with zeros in the place of all others."""
    return nn.functional.pad(first, (0, 0, 0, length - 1))


@contextmanager
def _felt_at_first(attention: Sublayer, batch: Batch) -> Iterator[None]:
    """An attention's features, and its output, with a way back from first tokens alone."""
    streams: list[Tensor] = []

    def cut(block: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        streams.append(args[0])
        return (args[0].detach(), *args[1:])

    def join(consumer: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
        return torch.cat([_first_features(attention, streams.pop(), batch), args[0][:, 1:]], dim=1)

    def hook(consumer: Any, args: tuple[Tensor, ...], output: Tensor) -> Any:
        return _FeltAtFirst.apply(args[0], output.detach(), consumer.weight)  # type: ignore[no-untyped-call]

    with ExitStack() as stack:
        if attention.scaling is not None:
            stack.callback(attention.block.register_forward_pre_hook(cut).remove)
            stack.callback(attention.consumer.register_forward_pre_hook(join).remove)
        stack.callback(attention.consumer.register_forward_hook(hook).remove)
        yield


def _first_features(attention: Sublayer, stream: Tensor, batch: Batch) -> Tensor:
    """What an attention's heads make of first tokens, (examples, 1, features), without anyone's keys and values.

    With a single query q, a head's scores are (q W_k) · x_t and its output is W_v Σ_t p_t x_t: few products, and few on
    the way back. What a key's bias adds is the same for all tokens, and softmax does not see it.
    """
    query, key, value = attention.producers
    of_heads = (attention.units, attention.width)
    asked = query(stream[:, 0]).unflatten(1, of_heads).transpose(0, 1) @ key.weight.unflatten(0, of_heads)
    scores = attention.scaling * (asked.transpose(0, 1) @ stream.transpose(1, 2))  # (examples, heads, length)
    if batch.tokens is not None:
        scores = scores.masked_fill(~batch.mask[:, None], -torch.inf)
    read = (scores.softmax(-1) @ stream).transpose(0, 1)  # (heads, examples, d)
    made: Tensor = (read @ value.weight.unflatten(0, of_heads).transpose(1, 2)).transpose(0, 1).flatten(1)
    return (made if value.bias is None else made + value.bias)[:, None]


@contextmanager
def _made_at_first(ffn: Sublayer) -> Iterator[None]:
    """An FFN's output at first tokens, and zeros at all others.

    Where gradients are wanted, the features of all tokens are made before, and seen, without a way back.
    """
    lengths: list[int] = []

    def halt(consumer: nn.Module, args: Any) -> None:
        raise _Reached

    def narrow(block: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
        (stream,) = args
        if torch.is_grad_enabled():
            with torch.no_grad(), suppress(_Reached), ffn.consumer.register_forward_pre_hook(halt):
                ffn.consumer(block.forward(stream))  # reached within the block already, if it is there
        lengths.append(stream.shape[1])
        return stream[:, :1].contiguous()  # else a Linear multiplies in another way where gradients are wanted

    def widen(consumer: nn.Module, args: Any, output: Tensor) -> Tensor:
        return _first_of(output, lengths.pop())

    with ExitStack() as stack:
        stack.callback(ffn.block.register_forward_pre_hook(narrow).remove)
        stack.callback(ffn.consumer.register_forward_hook(widen).remove)
        yield


@contextmanager
def for_first_tokens(layer: Sequence[Sublayer], batch: Batch) -> Iterator[None]:
    """Spare what a prediction from first tokens, and its way back, do not need of the topmost layer.

    Above its attention a layer works token by token: of other tokens, the features are made there, and no more. Enter
    it before all that observes.
    """
    with ExitStack() as stack:
        for sublayer in layer:
            is_ffn = sublayer.kind == "ffn"
            stack.enter_context(_made_at_first(sublayer) if is_ffn else _felt_at_first(sublayer, batch))
        yield


class _Reached(Exception):
    """Thrown to leave a pass once what it was run for is known."""


class _Replay(nn.Module):
    """Stands for modules that need not run again: returns what they would."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.output


class _Top(nn.Module):
    """Stands above the layers that are wanted: keeps the stream that they give, and ends the pass if told to."""

    stream: Tensor

    def __init__(self, halts: bool) -> None:
        super().__init__()
        self.halts = halts

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.stream = hidden_states.detach()
        if self.halts:
            raise _Reached
        return hidden_states


@contextmanager
def _with_layers(
    model: PreTrainedModel, start: int, stop: int | None, stream: Tensor | None, *, past_attention: bool = False
) -> Iterator[_Top]:
    """The model with layers start:stop only, fed with the stream; with a stop, the pass ends there.

    The stream is the one before layer `start`, or, `past_attention`, the one at that layer's FFN.
    """
    family = family_of(model.config)
    base: nn.Module = model.base_model
    layers = list(base.get_submodule(family.layers).children())
    top = _Top(halts=stop is not None)
    wanted: list[nn.Module] = [*layers[start:stop], top]
    with ExitStack() as stack:
        if stream is not None:
            wanted.insert(0, _Replay(stream))
            # What the embeddings would give is not looked at but for its shape: a view of a zero will do.
            width = getattr(model.config, "embedding_size", model.config.hidden_size)
            shape = stream.new_zeros(()).expand(*stream.shape[:-1], width)
            stack.enter_context(_swapped(base, family.embeddings, _Replay(shape)))
        if past_attention:
            skipped = _Replay((stream, None) if family.attention.returns_weights else stream)
            stack.enter_context(_swapped(layers[start], family.attention.block, skipped))
            stack.enter_context(_swapped(layers[start], family.joint, _Replay(stream)))
        stack.enter_context(_swapped(base, family.layers, nn.ModuleList(wanted)))
        with suppress(_Reached):
            yield top


@contextmanager
def _swapped(parent: nn.Module, path: str, module: nn.Module) -> Iterator[None]:
    original = parent.get_submodule(path)
    parent.set_submodule(path, module)
    try:
        yield
    finally:
        parent.set_submodule(path, original)


def call(model: PreTrainedModel, batch: Batch) -> Any:
    """The model's outputs."""
    # Asked for hidden states, transformers would hook whichever layers it finds first, and for good.
    return model(**batch.inputs, output_hidden_states=False, output_attentions=False, return_dict=True)


def forward(model: PreTrainedModel, batch: Batch, *, start: int = 0, stream: Tensor | None = None) -> Any:
    """The model's outputs, computed from the stream at layer `start` upward (or from the embeddings)."""
    return forward_and_top(model, batch, start=start, stream=stream)[0]


def forward_and_top(
    model: PreTrainedModel,
    batch: Batch,
    *,
    start: int = 0,
    stream: Tensor | None = None,
    past_attention: bool = False,
) -> tuple[Any, Tensor]:
    """The model's outputs, and the stream after its last layer without its graph."""
    with _with_layers(model, start, None, stream, past_attention=past_attention) as top:
        outputs = call(model, batch)
    return outputs, top.stream


def embed(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The stream at the bottom layer, (examples, length, d)."""
    with _with_layers(model, 0, 0, None) as top:
        call(model, batch)
    return top.stream


def advance(
    model: PreTrainedModel, batch: Batch, index: int, stream: Tensor, *, past_attention: bool = False
) -> Tensor:
    """The stream after layer `index`, given the stream before it, or the one at its FFN (`past_attention`)."""
    with _with_layers(model, index, index + 1, stream, past_attention=past_attention) as top:
        call(model, batch)
    return top.stream


@contextmanager
def replayed(sublayer: Sublayer, features: Tensor) -> Iterator[None]:
    """Within it, the sublayer's units make these features, (examples, length, features), whatever they are given."""
    slot = sublayer.slot
    made = sublayer.consumer(features) if slot.consumer_is_inside else features
    with _swapped(sublayer.layer, slot.block, _Replay((made, None) if slot.returns_weights else made)):
        yield


def pass_attention(model: PreTrainedModel, ffn: Sublayer, batch: Batch, stream: Tensor) -> Tensor:
    """The stream at a layer's FFN, given the stream before the layer."""
    seen: list[Tensor] = []

    def keep_stream(stream: Tensor) -> None:
        seen.append(stream)
        raise _Reached

    with _with_layers(model, ffn.index, ffn.index + 1, stream), _reading(ffn, keep_stream):
        call(model, batch)
    return seen[0]


@dataclass(frozen=True)
class Observation:
    """What reached one sublayer on one batch."""

    stream: Tensor
    """The residual stream X that the sublayer's output is added to, at real tokens; (tokens, d)."""
    features: Tensor
    """At real tokens; (tokens, features)."""
    padded: Tensor
    """The features of all tokens; (examples, length, features)."""


def watch(model: PreTrainedModel, sublayer: Sublayer, batch: Batch, stream: Tensor) -> Observation:
    """What its own units make of the stream at a sublayer; the pass ends at the consumer."""
    seen: dict[str, Tensor] = {}

    def keep_features(sublayer: Sublayer, features: Tensor) -> None:
        seen["features"] = features[..., : sublayer.features]  # an emptied sublayer has none
        raise _Reached

    with (
        _with_layers(model, sublayer.index, sublayer.index + 1, stream, past_attention=sublayer.kind == "ffn"),
        observe([sublayer], keep_features),
    ):
        call(model, batch)
    return Observation(batch.real(stream), batch.real(seen["features"]), seen["features"])


def pass_layer(
    model: PreTrainedModel, sublayers: Sequence[Sublayer], batch: Batch, stream: Tensor
) -> tuple[list[Tensor], Tensor]:
    """X + Sub(X) of each of one layer's sublayers, (tokens, d) of real tokens, and the stream after the layer."""
    read: dict[Sublayer, Tensor] = {}
    after: dict[Sublayer, Tensor] = {}
    with ExitStack() as stack:
        top = stack.enter_context(_with_layers(model, sublayers[0].index, sublayers[0].index + 1, stream))
        for sublayer in sublayers:

            def keep_stream(stream: Tensor, sublayer: Sublayer = sublayer) -> None:
                read[sublayer] = stream

            def add(module: nn.Module, args: Any, output: Tensor, sublayer: Sublayer = sublayer) -> None:
                after[sublayer] = batch.real(read[sublayer] + output)

            stack.enter_context(_reading(sublayer, keep_stream))
            stack.callback(sublayer.consumer.register_forward_hook(add).remove)
        call(model, batch)
    return [after[sublayer] for sublayer in sublayers], top.stream


@contextmanager
def _reading(sublayer: Sublayer, see: Callable[[Tensor], None]) -> Iterator[None]:
    """Call `see` with the residual stream at a sublayer as it is read."""

    def hook(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        see(args[0] if args else kwargs["hidden_states"])

    handle = sublayer.stream_reader.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
