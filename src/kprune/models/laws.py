"""Laws that a family's row must keep on a model, checked by running the model: a wrong row breaks at least one.

`kprune check` runs them on any model, and the tests run them on every family.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import pairwise, product

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from kprune.errors import UnsupportedModel
from kprune.maths.flops import unit_flops
from kprune.models.batches import Batch
from kprune.models.hooks import masked, on_features, on_residual
from kprune.models.outputs import OutputKind, runs_encoder_only
from kprune.models.passes import advance, call, embed, forward, pass_attention, pass_layer, replayed, watch
from kprune.models.pruned_shape import dense_units
from kprune.models.resize import shrink
from kprune.models.sublayer import BiasOnly, Sublayer, find

TOLERANCE = 1e-4
"""Largest difference between outputs that a law takes for rounding, relative to the largest output."""


class LawBroken(UnsupportedModel):
    """A row does not describe the model."""


def check_units(model: PreTrainedModel) -> None:
    """Law: projections divide among as many units as the config declares, in every layer."""
    sublayers = find(model)
    declared = dense_units(model.config)
    if len(sublayers) != 2 * model.config.num_hidden_layers:
        raise LawBroken(
            f"the row finds {len(sublayers) // 2} layers, and the config declares {model.config.num_hidden_layers}; "
            "correct its path of layers."
        )
    if sublayers[0].family.is_parallel and sublayers[0].family.mid_stream is not None:
        raise LawBroken("a parallel layer has no stream between its sublayers; set the row's mid_stream to None.")
    for sublayer in sublayers:
        if isinstance(sublayer.consumer, BiasOnly):
            continue
        if sublayer.units != declared[sublayer.kind] or sublayer.units * sublayer.width != sublayer.features:
            raise LawBroken(
                f"{sublayer.name} has {sublayer.features} features, which are not {declared[sublayer.kind]} units of "
                f"width {sublayer.width}; correct the row's dense_units or unit_width."
            )
        heads = (
            getattr(model.config, "num_attention_heads", None) if sublayer.kind == "attention" else sublayer.features
        )
        if isinstance(heads, int) and sublayer.units * sublayer.queries_per_unit != heads:
            raise LawBroken(
                f"{sublayer.name} has {sublayer.units} units, which are not {heads} heads or neurons; correct the "
                "row's unit_width."
            )
        for (path, stack), producer in zip(sublayer.block.producers.items(), sublayer.producers, strict=True):
            rows = sum(sublayer.heights(stack)) * sublayer.units
            if producer.out_features % rows:
                raise LawBroken(
                    f"{path} of {sublayer.name} has {producer.out_features} rows, which do not divide among "
                    f"{sublayer.units} units; correct the row's producers."
                )


@torch.no_grad()
def check_removal(model: PreTrainedModel, kind: OutputKind, batch: Batch) -> None:
    """Law: a model without some units computes what the dense model computes while those units are masked.

    Some, one and no units of each kind are kept. That the masks have an effect is part of the law.
    """
    dense = values(model, kind, batch)
    for name, keeps in _selections(find(model)):
        masks = {s: keep.to(s.consumer.weight) for s, keep in zip(find(model), keeps, strict=True) if s.units}
        with masked(masks, batch.mask.shape):
            expected = values(model, kind, batch)
        if torch.equal(expected, dense):
            raise LawBroken(f"masking units ({name}) has no effect on the outputs; correct the row's consumers.")
        small = copy.deepcopy(model)
        try:
            for sublayer, keep in zip(find(small), keeps, strict=True):
                if sublayer.units:
                    shrink(sublayer, keep)
            actual = values(small, kind, batch)
        except (RuntimeError, ValueError, IndexError, AttributeError, TypeError) as error:
            raise LawBroken(
                f"the model does not run without some units ({name}): {str(error).splitlines()[0]}"
            ) from error
        require_close(f"removing units ({name}) is not masking them", actual, expected)


def _selections(sublayers: list[Sublayer]) -> Iterator[tuple[str, list[Tensor]]]:
    """Names and masks over units per sublayer: different numbers in different layers, one unit, and none."""
    generator = torch.Generator().manual_seed(0)
    some = []
    for sublayer in sublayers:
        keep = torch.rand(sublayer.units, generator=generator) < 0.6
        keep[(sublayer.index % max(sublayer.units, 1)) : (sublayer.index % max(sublayer.units, 1)) + 1] = True
        keep[-1:] = False if sublayer.units > 1 else keep[-1:]
        if not keep.any():
            keep[:1] = True
        some.append(keep)
    yield "some of each kind", some
    for kind in ("attention", "ffn"):
        last = [
            torch.arange(s.units) == s.units - 1 if s.kind == kind else torch.ones(s.units, dtype=torch.bool)
            for s in sublayers
        ]
        if any(not bool(keep.all()) for keep in last):
            yield f"one {kind} unit left", last
        yield (
            f"no {kind} unit left in the lowest layer",
            [torch.full((s.units,), not (s.kind == kind and s.index == 0), dtype=torch.bool) for s in sublayers],
        )


@torch.no_grad()
def check_restart(model: PreTrainedModel, kind: OutputKind, batch: Batch) -> None:
    """Law: a pass that starts at any sublayer gives the outputs of the whole pass."""
    expected = values(model, kind, batch)
    stream = embed(model, batch)
    sublayers = find(model)
    for attention, ffn in zip(sublayers[::2], sublayers[1::2], strict=True):
        index = ffn.index
        actual = kind.read(forward(model, batch, start=index, stream=stream), batch).values
        require_close(f"a pass that starts at layer {index} is not the whole pass", actual, expected)
        midway = pass_attention(model, ffn, batch, stream)
        actual = kind.read(forward(model, batch, start=index, stream=midway, at_ffn=True), batch).values
        require_close(f"a pass that starts at the FFN of layer {index} is not the whole pass", actual, expected)
        for sublayer, before in ((attention, stream), (ffn, midway)):
            _check_replay(model, kind, batch, sublayer, before, expected)
        after = advance(model, batch, index, stream)
        require_close(
            f"layer {index} from its FFN on is not the whole layer",
            advance(model, batch, index, midway, at_ffn=True),
            after,
        )
        stream = after
    actual = kind.read(forward(model, batch, start=index + 1, stream=stream), batch).values
    require_close("the head alone does not give the outputs of the whole pass", actual, expected)


def _check_replay(
    model: PreTrainedModel, kind: OutputKind, batch: Batch, sublayer: Sublayer, stream: Tensor, expected: Tensor
) -> None:
    """A pass in which a sublayer's consumer reads its kept features gives the outputs of the whole pass."""
    seen = watch(model, sublayer, batch, stream)
    at_ffn = sublayer.kind == "ffn"
    with replayed(sublayer, seen.consumer_input):
        outputs = forward(model, batch, start=sublayer.index, stream=stream, at_ffn=at_ffn)
    actual = kind.read(outputs, batch).values
    require_close(f"a pass with the kept features of {sublayer.name} is not the whole pass", actual, expected)


@torch.no_grad()
def check_order(model: PreTrainedModel, batch: Batch) -> None:
    """Law: sublayers read the stream where the row says; the FFN reads attention's output unless they are parallel.

    Earlier tokens depend on later ones unless the row is causal.
    """
    stream, sees_later = embed(model, batch), False
    family = find(model)[0].family
    for attention, ffn in zip(find(model)[::2], find(model)[1::2], strict=True):
        for sublayer in (attention, ffn) if family.is_parallel else (attention,):
            if not torch.equal(_residual(model, batch, sublayer, stream), stream):
                raise LawBroken(
                    f"{sublayer.block.residual_input} of {sublayer.name} does not read the stream before the layer; "
                    "correct the row's residual_input."
                )
        with_heads, without = (_features(model, batch, attention, ffn, stream, mask) for mask in (1.0, 0.0))
        if torch.equal(with_heads, without) is not family.is_parallel:
            found = "reads" if family.is_parallel else "does not read"
            raise LawBroken(f"{ffn.name} {found} the output of attention; correct the row's is_parallel.")
        after, changed = advance(model, batch, ffn.index, stream), stream.clone()
        changed[:, -1] += 1 + stream[:, -1].flip(-1)
        sees_later |= not torch.equal(advance(model, batch, ffn.index, changed)[:, :-1], after[:, :-1])
        stream = after
    if stream.shape[1] > 1 and sees_later is family.causal:
        found = "depend" if sees_later else "do not depend"
        raise LawBroken(f"the outputs at earlier tokens {found} on later ones; correct the row's causal.")


def _residual(model: PreTrainedModel, batch: Batch, sublayer: Sublayer, stream: Tensor) -> Tensor:
    """What the row takes for the residual stream at a sublayer, given the stream before its layer."""
    read: list[Tensor] = []
    with on_residual(sublayer, read.append, batch.mask.shape):
        advance(model, batch, sublayer.index, stream)
    if len(read) != 1:
        raise LawBroken(
            f"{sublayer.block.residual_input} of {sublayer.name} is called {len(read)} times in a pass; name a module "
            "that is called once as the row's residual_input."
        )
    return read[0]


def _features(
    model: PreTrainedModel, batch: Batch, attention: Sublayer, ffn: Sublayer, stream: Tensor, mask: float
) -> Tensor:
    """Features of an FFN while all heads of its layer are scaled."""
    made: list[Tensor] = []
    heads = {attention: stream.new_full((attention.units,), mask)}
    with masked(heads, batch.mask.shape), on_features([ffn], lambda _, features: made.append(features)):
        advance(model, batch, ffn.index, stream)
    return made[0]


@torch.no_grad()
def check_targets(model: PreTrainedModel, batch: Batch) -> None:
    """Law: X + Sub(X), which refits aim at, is the stream that the layer makes, up to the norm after it."""
    stream = embed(model, batch)
    for attention, ffn in pairwise(find(model)):
        if attention.kind == "ffn":
            continue
        midway = pass_attention(model, ffn, batch, stream)
        targets, after = pass_layer(model, [attention, ffn], batch, stream)
        for sublayer, target, before, result in (
            (attention, targets[0], stream, midway),
            (ffn, targets[1], midway, after),
        ):
            seen = watch(model, sublayer, batch, before)
            own = seen.stream + sublayer.consumer(seen.features)
            require_close(f"the refit of {sublayer.name} reads other features than its target", own, target)
            if not _is_stream(sublayer, target, batch, before, result):
                raise LawBroken(
                    f"X + Sub(X) of {sublayer.name} is not the stream after it, with or without a norm; correct the "
                    "row's residual_input, mid_stream, is_normed or is_parallel."
                )
        stream = after


def _is_stream(sublayer: Sublayer, target: Tensor, batch: Batch, before: Tensor, result: Tensor) -> bool:
    """Whether the stream after a sublayer follows from its target."""
    stream = batch.real(result)
    if sublayer.family.is_parallel and sublayer.kind == "attention":
        return True  # the sum of the layer's input and attention is no stream; the FFN's target contains it
    candidates = [target]
    for norm in sublayer.layer.modules():
        weight = getattr(norm, "weight", None)
        if not isinstance(norm, nn.Linear) and isinstance(weight, Tensor) and weight.shape == target.shape[-1:]:
            normed = norm(target)
            candidates.append(batch.real(before) + normed if sublayer.block.is_normed else normed)
    if sublayer.block.is_normed:
        candidates = candidates[1:]
    return any(bool((each - stream).abs().max() <= TOLERANCE * stream.abs().max()) for each in candidates)


@torch.no_grad()
def check_flops(model: PreTrainedModel, batch: Batch) -> None:
    """Law: units cost what torch's counter counts when half or all of them are removed.

    Attention is counted in full, uncut by masks.
    """
    dense = copy.deepcopy(model).requires_grad_(False)
    dense.set_attn_implementation("eager")
    examples, length = batch.mask.shape
    before = _counted_flops(dense, batch)
    for kind, share in product(("attention", "ffn"), (0.5, 0.0)):
        small, expected = copy.deepcopy(dense), 0.0
        for sublayer in find(small):
            if sublayer.kind == kind and sublayer.units:
                attended = sublayer.width if kind == "attention" else 0
                left = int(share * sublayer.units)
                expected += (sublayer.units - left) * unit_flops(sublayer.weights_per_unit, length, attended) * examples
                shrink(sublayer, torch.arange(sublayer.units) < left)
        counted = before - _counted_flops(small, batch)
        more = kind == "attention" and find(model)[0].family.uncounted is not None
        if counted < (1 - 1e-3) * expected or (counted > (1 + 1e-3) * expected and not more):
            raise LawBroken(
                f"removing {'all' if share == 0 else 'half of the'} {kind} units saves {counted:,.0f} FLOPs by torch's "
                f"counter and {expected:,.0f} by the row; correct its producers or module."
            )


@torch.no_grad()
def check_cache(model: PreTrainedModel, kind: OutputKind, batch: Batch) -> None:
    """Law: with a key/value cache, the second half of an input gives what the whole input gives.

    Only decoders have a cache. The lowest attention is emptied, because its cache entry counts the tokens.
    """
    ids = batch.inputs.get("input_ids")
    is_text = ids is not None and not runs_encoder_only(model)
    cached = getattr(model.base_model(ids[:1]), "past_key_values", None) if is_text and ids is not None else None
    if (cached is not None) != find(model)[0].family.has_cache:
        raise LawBroken(f"the row's has_cache is not true: the model returns {type(cached).__name__}; correct it.")
    if cached is None or ids is None:
        return
    small = copy.deepcopy(model)
    lowest = find(small)[0]
    shrink(lowest, torch.zeros(lowest.units, dtype=torch.bool))
    row = ids[batch.mask.all(1)][:1] if bool(batch.mask.all(1).any()) else ids[:1, : int(batch.mask[0].sum())]
    middle = row.shape[1] // 2
    first = small.base_model(row[:, :middle], use_cache=True)
    second = small.base_model(row[:, middle:], past_key_values=first.past_key_values, use_cache=True)
    whole = small.base_model(row, use_cache=False).last_hidden_state[:, middle:]
    require_close("a pass in two parts with a cache is not the whole pass", second.last_hidden_state, whole)


def _counted_flops(model: PreTrainedModel, batch: Batch) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        call(model, batch)
    return int(counter.get_total_flops())


Law = Callable[[PreTrainedModel, OutputKind, Batch], None]
LAWS: dict[str, Law] = {
    "units": lambda model, kind, batch: check_units(model),
    "restart": check_restart,
    "order": lambda model, kind, batch: check_order(model, batch),
    "targets": lambda model, kind, batch: check_targets(model, batch),
    "removal": check_removal,
    "FLOPs": lambda model, kind, batch: check_flops(model, batch),
    "cache": check_cache,
}
"""Every law, by name, in the order in which they are checked."""


def check_all(model: PreTrainedModel, kind: OutputKind, batch: Batch) -> None:
    """All laws on one batch; raises `LawBroken` with the first that does not hold."""
    for law in LAWS.values():
        law(model, kind, batch)


def values(model: PreTrainedModel, kind: OutputKind, batch: Batch) -> Tensor:
    """The model's outputs, one row per prediction."""
    return kind.read(call(model, batch), batch).values


def require_close(what: str, actual: Tensor, expected: Tensor) -> None:
    """Raise unless two outputs are equal up to rounding."""
    if actual.shape != expected.shape:
        raise LawBroken(f"{what}: the shapes are {tuple(actual.shape)} and {tuple(expected.shape)}.")
    finite = expected.isfinite()
    scale = expected[finite].abs().max()
    difference = (actual[finite] - expected[finite]).abs().max()
    if not bool(difference <= TOLERANCE * scale):  # also true for NaN
        raise LawBroken(f"{what}: outputs differ by {difference / scale:.1e} of the largest.")
