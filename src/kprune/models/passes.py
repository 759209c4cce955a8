"""Passes through a part of a model.

Everything below the current sublayer is final, so its output is kept and passes start there. The model's own forward
runs, with its list of layers as it is: layers below the start return their input, and the layer at the start gets the
kept stream. The model itself computes masks, positions and the task's head.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kprune.models.batches import Batch
from kprune.models.families import family_of
from kprune.models.family import Family
from kprune.models.hooks import by_example, forward_as, on_consumer_output, on_residual
from kprune.models.outputs import runs_encoder_only
from kprune.models.sublayer import Sublayer


class _Reached(Exception):
    """Ends a pass once its result is known."""


def call(model: PreTrainedModel, batch: Batch, **options: Any) -> Any:
    """The model's outputs on a batch."""
    # With hidden states requested, transformers would attach hooks of its own to the layers, permanently.
    return run(model, batch.inputs, output_hidden_states=False, output_attentions=False, **options)


def run(model: PreTrainedModel, inputs: Mapping[str, Tensor], **options: Any) -> Any:
    """The outputs for a tokenizer's or processor's inputs: without a cache, and without a decoder behind an encoder."""
    if family_of(model.config).has_cache:
        options["use_cache"] = False
    called = model.get_encoder() if runs_encoder_only(model) else model
    inputs = {n: v.to(model.dtype) if v.is_floating_point() else v for n, v in inputs.items()}
    return called(**inputs, return_dict=True, **options)


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """The model's layers, bottom to top."""
    return list(model.base_model.get_submodule(family_of(model.config).layers).children())


def forward(
    model: PreTrainedModel, batch: Batch, *, start: int = 0, stream: Tensor | None = None, at_ffn: bool = False
) -> Any:
    """The model's outputs, computed from the stream at layer `start` upward, or from the embeddings.

    With `at_ffn` the stream is the one at that layer's FFN. `start` may be the number of layers: only the head runs.
    """
    with _starting_at(model, start, stream, at_ffn):
        return call(model, batch)


def forward_and_top(
    model: PreTrainedModel, batch: Batch, *, start: int = 0, stream: Tensor | None = None, at_ffn: bool = False
) -> tuple[Any, Tensor]:
    """The model's outputs, and the detached stream after its last layer."""
    with _output_of(layers_of(model)[-1]) as top:
        outputs = forward(model, batch, start=start, stream=stream, at_ffn=at_ffn)
    return outputs, top[0]


def forward_to_top(
    model: PreTrainedModel, batch: Batch, *, start: int = 0, stream: Tensor | None = None, at_ffn: bool = False
) -> Tensor:
    """The stream after the last layer, with its graph; the head does not run."""
    tops: list[Tensor] = []

    def stop(module: nn.Module, args: Any, output: Any) -> None:
        tops.append(output[0] if isinstance(output, tuple) else output)
        raise _Reached

    with (
        _starting_at(model, start, stream, at_ffn),
        suppress(_Reached),
        layers_of(model)[-1].register_forward_hook(stop),
    ):
        call(model, batch)
    return tops[0]


def forward_with_streams(model: PreTrainedModel, batch: Batch, *, with_head: bool = True) -> tuple[Any, list[Tensor]]:
    """The model's outputs (None without the head), and the stream after each layer; all with their graphs."""
    streams: list[Tensor] = []
    layers = layers_of(model)

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        streams.append(output[0] if isinstance(output, tuple) else output)
        if len(streams) == len(layers) and not with_head:
            raise _Reached

    outputs = None
    with ExitStack() as stack:
        stack.enter_context(suppress(_Reached))
        for layer in layers:
            stack.enter_context(layer.register_forward_hook(keep))
        outputs = call(model, batch)
    return outputs, streams


def has_partial_head(model: PreTrainedModel) -> bool:
    """Whether the model can compute the logits of some positions only."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def head_at(model: PreTrainedModel, batch: Batch, top: Tensor, positions: Tensor) -> Any:
    """The outputs at some positions, given the stream after the last layer."""
    with _starting_at(model, len(layers_of(model)), top):
        return call(model, batch, logits_to_keep=positions)


def embed(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The stream at the bottom layer, (examples, length, d)."""
    streams: list[Tensor] = []

    def stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        streams.append((args[0] if args else kwargs["hidden_states"]).detach())
        raise _Reached

    with suppress(_Reached), layers_of(model)[0].register_forward_pre_hook(stop, with_kwargs=True):
        call(model, batch)
    return streams[0]


def stream_length(model: PreTrainedModel, inputs: dict[str, Tensor]) -> int:
    """Tokens (patches, frames) in the stream of an input that has no token numbers."""
    on_device = {name: value.to(model.device) for name, value in inputs.items()}
    batch = Batch(on_device, torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, dtype=torch.long), None, None, None)
    with torch.no_grad():
        return embed(model, batch).shape[1]


def advance(model: PreTrainedModel, batch: Batch, index: int, stream: Tensor, *, at_ffn: bool = False) -> Tensor:
    """The stream after layer `index`, given the stream before it, or the one at its FFN."""
    with _starting_at(model, index, stream, at_ffn), _output_of(layers_of(model)[index], ends_pass=True) as output:
        call(model, batch)
    return output[0]


def pass_attention(model: PreTrainedModel, ffn: Sublayer, batch: Batch, stream: Tensor) -> Tensor:
    """The stream at a layer's FFN, given the stream before the layer; in a parallel layer they are the same."""
    if ffn.family.is_parallel:
        return stream
    streams: list[Tensor] = []

    def stop(stream: Tensor) -> None:
        streams.append(stream)
        raise _Reached

    with _starting_at(model, ffn.index, stream), suppress(_Reached), on_residual(ffn, stop, batch.mask.shape):
        call(model, batch)
    return streams[0]


@dataclass(frozen=True)
class Observation:
    """What reached one sublayer on one batch."""

    stream: Tensor
    """The residual stream X that the sublayer's output is added to, at real tokens; (tokens, d).

    Zero where the output is normalised before it is added: such a sublayer is fitted to its own output.
    """
    features: Tensor
    """Features at real tokens; (tokens, features)."""
    consumer_input: Tensor
    """Features as the consumer read them, padding included."""


def watch(model: PreTrainedModel, sublayer: Sublayer, batch: Batch, stream: Tensor) -> Observation:
    """The features that a sublayer makes of the stream at it; the pass ends at the consumer."""
    inputs: list[Tensor] = []
    added = [stream]

    def stop(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        inputs.append(args[0][..., : sublayer.features])  # an emptied sublayer has no features
        raise _Reached

    with ExitStack() as stack:
        stack.enter_context(_starting_at(model, sublayer.index, stream, at_ffn=sublayer.kind == "ffn"))
        if sublayer.family.is_parallel and sublayer.kind == "ffn":
            stack.enter_context(on_consumer_output(_attention_beside(sublayer), added.append, batch.mask.shape))
        stack.enter_context(suppress(_Reached))
        stack.enter_context(sublayer.consumer.register_forward_pre_hook(stop))
        call(model, batch)
    residual = batch.real(sum(added[1:], added[0]))
    if sublayer.block.is_normed:
        residual = torch.zeros_like(residual)
    return Observation(residual, batch.real(by_example(inputs[0], batch.mask.shape)), inputs[0])


def _attention_beside(ffn: Sublayer) -> Sublayer:
    """The attention block of an FFN's layer."""
    return Sublayer(ffn.layer, ffn.index, "attention", ffn.family)


@contextmanager
def replayed(sublayer: Sublayer, consumer_input: Tensor) -> Iterator[None]:
    """Within the context, the sublayer's units do not run: the consumer reads the given features."""
    block = sublayer.block
    made = sublayer.consumer(consumer_input) if block.consumer_is_inside else consumer_input
    with ExitStack() as stack:
        stack.enter_context(forward_as(sublayer.module, lambda *args, **kwargs: _returned(block.returns, made)))
        if not block.consumer_is_inside:  # an activation may lie between the module and the consumer
            stack.enter_context(sublayer.consumer.register_forward_pre_hook(lambda module, args: (consumer_input,)))
        yield


def pass_layer(
    model: PreTrainedModel, sublayers: Sequence[Sublayer], batch: Batch, stream: Tensor
) -> tuple[list[Tensor], Tensor]:
    """X + Sub(X) of each of one layer's sublayers, (tokens, d) of real tokens, and the stream after the layer.

    Where the output is normalised before it is added, Sub(X) alone. In a parallel layer, the FFN's X has the
    attention's output added.
    """
    residuals: dict[str, Tensor] = {}
    sums: dict[str, Tensor] = {}
    index, shape, family = sublayers[0].index, batch.mask.shape, sublayers[0].family
    watched = [_attention_beside(sublayers[0]), *sublayers] if sublayers[0].kind == "ffn" else sublayers
    with ExitStack() as stack:
        stack.enter_context(_starting_at(model, index, stream))
        output = stack.enter_context(_output_of(layers_of(model)[index], ends_pass=True))
        for sublayer in watched if family.is_parallel else sublayers:

            def keep(stream: Tensor, kind: str = sublayer.kind) -> None:
                residuals[kind] = stream

            def add(output: Tensor, sublayer: Sublayer = sublayer) -> None:
                if sublayer.block.is_normed:
                    sums[sublayer.kind] = batch.real(output)
                elif family.is_parallel:
                    sums[sublayer.kind] = batch.real(output) + sums.get("attention", batch.real(residuals["attention"]))
                else:
                    sums[sublayer.kind] = batch.real(residuals[sublayer.kind] + output)

            stack.enter_context(on_residual(sublayer, keep, shape))
            stack.enter_context(on_consumer_output(sublayer, add, shape))
        call(model, batch)
    return [sums[sublayer.kind] for sublayer in sublayers], output[0]


@contextmanager
def _output_of(layer: nn.Module, *, ends_pass: bool = False) -> Iterator[list[Tensor]]:
    """A list that gets the layer's detached output; with `ends_pass`, the pass ends there."""
    outputs: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        outputs.append((output[0] if isinstance(output, tuple) else output).detach())
        if ends_pass:
            raise _Reached

    with suppress(_Reached), layer.register_forward_hook(keep):
        yield outputs


@contextmanager
def _starting_at(model: PreTrainedModel, index: int, stream: Tensor | None, at_ffn: bool = False) -> Iterator[None]:
    """Within the context, passes start at layer `index` with the given stream, or at that layer's FFN."""
    if stream is None:
        yield
        return
    family, layers = family_of(model.config), layers_of(model)
    values = family.layer_returns

    def skip(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return _returned(values, hidden_states)

    with ExitStack() as stack:
        _skip_embeddings(stack, model, family, stream)
        for layer in layers[:index]:
            stack.enter_context(forward_as(layer, skip))
        if index == len(layers):
            stack.enter_context(forward_as(layers[-1], lambda *args, **kwargs: _returned(values, stream)))
        else:
            stack.enter_context(_fed(layers[index], stream))
        if at_ffn and not family.is_parallel:
            _skip_attention(stack, layers[index], family, stream)
        yield


def _skip_embeddings(stack: ExitStack, model: PreTrainedModel, family: Family, stream: Tensor) -> None:
    """Let the embeddings return an expanded zero: only its shape is used."""
    if family.embeddings is None:
        return
    embeddings = model.base_model.get_submodule(family.embeddings)
    shape = tuple(stream.shape)
    if family.inputs == "input_ids":
        width = next(module.embedding_dim for module in embeddings.modules() if isinstance(module, nn.Embedding))
        shape = (*stream.shape[:-1], width)
    elif family.inputs == "input_values":  # convolutions, whose output is (examples, channels, frames)
        shape = (stream.shape[0], model.config.conv_dim[-1], stream.shape[1])
    zeros = stream.new_zeros(()).expand(shape)
    stack.enter_context(forward_as(embeddings, lambda *args, **kwargs: zeros))


def _skip_attention(stack: ExitStack, layer: nn.Module, family: Family, stream: Tensor) -> None:
    """Let the layer's FFN read the stream: the norm after attention returns it, or attention adds nothing."""
    block = family.blocks["attention"]
    if family.mid_stream is not None:
        middle = layer.get_submodule(family.mid_stream)
        stack.enter_context(forward_as(middle, lambda *args, **kwargs: stream))
    output = stream if family.mid_stream is not None else torch.zeros_like(stream)
    attention = layer.get_submodule(block.module)
    stack.enter_context(forward_as(attention, lambda *args, **kwargs: _returned(block.returns, output)))


@contextmanager
def _fed(layer: nn.Module, stream: Tensor) -> Iterator[None]:
    """The layer reads the given stream, whatever it is called with."""

    def feed(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if args:
            return (stream, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": stream}

    with layer.register_forward_pre_hook(feed, with_kwargs=True):
        yield


def _returned(values: int, output: Tensor) -> Any:
    """The output as a module returns it: alone, or as the first of several values."""
    return output if values == 1 else (output, *[None] * (values - 1))
