"""The fields of a proposed `Block`, from the trace of one layer: who reads what, heads, widths, what to rewrite."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, islice

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from kprune.errors import UnsupportedModel
from kprune.models.family import Block, Family, Stack
from kprune.models.hooks import masked
from kprune.models.layer_trace import LayerTrace, noise_like
from kprune.models.resize import shrink
from kprune.models.sublayer import Sublayer

KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv")
HEADS = ("num_attention_heads", "encoder_attention_heads", "n_heads", "n_head", "num_heads")
NEURONS = re.compile(r"intermediate_size|ff|hidden_dim|inner|mlp|feedforward|feed_forward")
CACHES = ("past_key_values", "layer_past", "past_key_value", "cache")
WIDTH = re.compile(r"head_(dim|size)|proj_dim|d_kv|per_head")
GROUPS = re.compile(r"group|rep")
TOLERANCE = 1e-4
MOST_TRIES = 60
"""Subsets of attributes that are tried, after the obvious ones."""


@dataclass(frozen=True)
class Flow:
    """One sublayer: Linears that read the stream, and the Linear that reads their outputs."""

    producers: list[str]
    consumer: str
    others: list[str]
    """Linears that the consumer depends on, too, but that read something else, such as positions."""


def find_flows(trace: LayerTrace) -> dict[str, Flow]:
    """The layer's two sublayers by kind; raises if it has others."""
    readers = trace.readers()
    rest = [path for path in trace.first.inputs if path not in readers]
    read_by = {path: trace.read_by(path) for path in trace.first.inputs}
    flows: dict[str, Flow] = {}
    for consumer in rest:
        producers = [path for path in readers if consumer in read_by[path]]
        if not producers:
            continue
        others = [path for path in rest if consumer in read_by[path]]
        kind = "attention" if trace.mixes_tokens(producers, consumer) else "ffn"
        if kind in flows:
            raise _other_blocks(f"{flows[kind].consumer} and {consumer} both end an {kind} block")
        flows[kind] = Flow(producers, consumer, others)
    if set(flows) != {"attention", "ffn"}:
        raise _other_blocks(f"{', '.join(flows) or 'nothing'} was found")
    if flows["attention"].producers[0] in read_by[flows["ffn"].consumer]:
        raise _other_blocks("the FFN runs before attention")
    return {kind: flows[kind] for kind in ("attention", "ffn")}


def _other_blocks(what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"a layer is not one attention block and one FFN of Linears: {what}; write a row by hand (docs/new-family.md)."
    )


def parent(*paths: str) -> str:
    """The deepest module that contains all these modules; empty for the layer itself."""
    owners = [path.split(".")[:-1] for path in paths]
    common = []
    for names in zip(*owners, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return ".".join(common)


def modules_of(flow: Flow) -> list[str]:
    """Modules that may be replaced if no unit is left, the likeliest first."""
    inner = parent(*flow.producers) or (flow.producers[0] if len(flow.producers) == 1 else "")
    return list(dict.fromkeys(path for path in (inner, parent(*flow.producers, flow.consumer)) if path))


def propose_block(trace: LayerTrace, flow: Flow, kind: str, config: PreTrainedConfig) -> Block:
    """A block with all fields but its streams, which `kprune.models.proposal` searches."""
    features = trace.first.inputs[flow.consumer][0].shape[-1]
    modules = modules_of(flow)
    if not modules:
        raise _other_blocks(f"no module contains {', '.join(flow.producers)}")
    block = Block(
        residual_input=modules[0],
        module=modules[0],
        producers=dict.fromkeys(flow.producers, 1),
        consumer=flow.consumer,
        dense_units=_neurons(config, features),
        output_scale=_output_scale(trace, flow.consumer),
        is_normed=_is_normed(trace, flow.consumer),
    )
    units = features
    if kind == "attention":
        block, units = _with_heads(trace, flow, block, config, features)
    producers = {path: _stack(trace, path, flow.consumer, units, features, block) for path in flow.producers}
    return _with_rewrites(trace, replace(block, producers=producers), kind, flow, units)


def _neurons(config: PreTrainedConfig, features: int) -> str | int:
    """The config's attribute with the number of neurons, or the number."""
    names = sorted(name for name in config.to_dict() if NEURONS.search(name))
    return next((name for name in ("intermediate_size", *names) if getattr(config, name, None) == features), features)


def _with_heads(
    trace: LayerTrace, flow: Flow, block: Block, config: PreTrainedConfig, features: int
) -> tuple[Block, int]:
    """The block with the units and the width of heads, and the number of units."""
    queries_name = next((name for name in HEADS if isinstance(getattr(config, name, None), int)), None)
    queries = getattr(config, queries_name) if queries_name else 0
    if not queries or features % queries:
        raise UnsupportedModel(
            f"the config declares {queries} heads, which do not divide {features} features; write a row by hand."
        )
    width = features // queries
    units, units_name = queries, queries_name
    fewest = min(trace.first.outputs[path][0].shape[-1] for path in flow.producers) // width
    for name in KEY_VALUE_HEADS:
        declared = getattr(config, name, None)
        if isinstance(declared, int) and 0 < declared < queries and (len(flow.producers) < 3 or declared == fewest):
            units, units_name = declared, name
            break
    parts: tuple[str | int, ...] = (_attribute(trace, block.module, WIDTH, width),)
    if units < queries:
        parts = (*parts, _attribute(trace, block.module, GROUPS, queries // units))
    bias = _head_bias(trace, block.module, queries) if units == queries else None
    names = set(_signature(trace.layer.get_submodule(block.module)))
    cache = next((name for name in CACHES if name in names), "past_key_values")
    assert units_name is not None
    return replace(block, dense_units=units_name, unit_width=parts, head_bias=bias, cache=cache), units


def _signature(module: nn.Module) -> list[str]:
    code = type(module).forward.__code__
    return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _attribute(trace: LayerTrace, module: str, pattern: re.Pattern[str], value: int) -> str | int:
    """The path of a module's attribute with this value and such a name, or the value."""
    for path, name, found in _integers(trace.layer, module):
        if found == value and pattern.search(name):
            return f"{path}.{name}"
    return value


def _integers(layer: nn.Module, top: str) -> Iterator[tuple[str, str, int]]:
    """Integer attributes of a module and its parts, Linears left out: path of the owner, name, value."""
    for path, module in layer.named_modules():
        if (path == top or path.startswith(top + ".")) and not hasattr(module, "weight"):
            for name, value in vars(module).items():
                if type(value) is int and not name.startswith("_"):
                    yield path, name, value


def _head_bias(trace: LayerTrace, module: str, heads: int) -> str | None:
    """The attention module's argument with one entry per head, if the layer is called with it."""
    args, kwargs = trace.modules.arguments.get(module, ((), {}))
    named = {**dict(zip(_signature(trace.layer.get_submodule(module))[1:], args, strict=False)), **kwargs}
    given = {id(value) for value in (*trace.args, *trace.kwargs.values())}
    for name, value in named.items():
        is_bias = isinstance(value, Tensor) and value.dim() == 4 and value.shape[1] == heads > 1
        if is_bias and id(value) in given:
            return name
    return None


def _stack(trace: LayerTrace, path: str, consumer: str, units: int, features: int, block: Block) -> Stack:
    """How a producer's rows are ordered, by what single rows change; 1 if nothing fits."""
    rows = trace.first.outputs[path][0].shape[-1]
    width = features // units
    changed = trace.features_of_rows(path, consumer)
    groups = block.unit_width[1] if len(block.unit_width) > 1 else 1
    number = groups if isinstance(groups, int) else _read(trace.layer, groups)
    choices: list[tuple[Stack, list[int]]] = [(n, [1] * n) for n in (1, 2, 3)]
    if number > 1:
        choices += [((groups, 1, 1), [number, 1, 1])]
    for stack, heights in choices:
        if rows % (sum(heights) * units) == 0 and all(
            {feature // width for feature in found} <= {_unit_of(row, rows, heights, units)}
            for row, found in changed.items()
        ):
            return stack
    return 1


def _read(layer: nn.Module, path: str) -> int:
    owner, _, name = path.rpartition(".")
    return int(getattr(layer.get_submodule(owner), name))


def _unit_of(row: int, rows: int, heights: list[int], units: int) -> int:
    """The unit that a row belongs to, if the rows are stacked with these heights."""
    for height in heights:
        part = rows * height // sum(heights)
        if row < part:
            return row // (part // units)
        row -= part
    raise AssertionError(row)


def _output_scale(trace: LayerTrace, consumer: str) -> str | None:
    """A parameter that multiplies the consumer's output: both have the same effect."""
    width = trace.stream.shape[-1]
    for path, parameter in trace.layer.named_parameters():
        if parameter.shape != (width,) or path.rpartition(".")[0] in trace.projections:
            continue
        factor = 1 + noise_like(torch.arange(width, dtype=torch.float32)).to(parameter) / width
        layer = copy.deepcopy(trace.layer)
        with torch.no_grad():
            layer.get_parameter(path).mul_(factor)
        scaled = trace.call({consumer: lambda output, factor=factor: output * factor})  # type: ignore[misc]
        if is_close(trace.call(layer=layer).result, scaled.result) and not is_close(scaled.result, trace.first.result):
            return path
    return None


def _is_normed(trace: LayerTrace, consumer: str) -> bool:
    """Whether the layer's output stays when the consumer's output is multiplied: a norm follows, before the sum."""
    larger = trace.call({consumer: lambda output: output * 4})
    return is_close(larger.result, trace.first.result, tolerance=1e-2)


def is_close(a: Tensor, b: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Whether two tensors are equal up to rounding, relative to the largest entry."""
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance * b.abs().max())


Rewrites = tuple[tuple[tuple[str, str], ...], dict[str, int]]
"""`Block.counts` and `Block.parameters`."""


def _with_rewrites(trace: LayerTrace, block: Block, kind: str, flow: Flow, units: int) -> Block:
    """The block with the fewest counts and parameters with which removal is exact in the traced layer."""
    features = trace.first.inputs[flow.consumer][0].shape[-1]
    counts, others = _count_attributes(trace, block, units, features)
    parameters = _unit_parameters(trace, block, flow, units, features)

    def works(rewrites: Rewrites) -> bool:
        return _is_exact(trace, replace(block, counts=rewrites[0], parameters=rewrites[1]), kind, units)

    obvious: list[Rewrites] = [
        (chosen, dict(given))
        for given in ({}, parameters)
        for chosen in ((), tuple(counts), (*counts, *others))
        if given or given is not parameters
    ]
    everything = [*counts, *others]
    subsets = ((chosen, parameters) for size in (1, 2, 3) for chosen in combinations(everything, size))
    found = next((each for each in (*obvious, *islice(subsets, MOST_TRIES)) if works(each)), None)
    if found is None:
        return replace(block, counts=tuple(counts), parameters=parameters)
    needed, needed_parameters = found
    for entry in reversed(needed):
        fewer = tuple(other for other in needed if other != entry)
        needed = fewer if works((fewer, needed_parameters)) else needed
    for path in list(needed_parameters):
        rest = {other: dim for other, dim in needed_parameters.items() if other != path}
        needed_parameters = rest if works((needed, rest)) else needed_parameters
    return replace(block, counts=needed, parameters=needed_parameters)


def _count_attributes(
    trace: LayerTrace, block: Block, units: int, features: int
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Attributes of modules, and of configs that modules keep, with the number of units, queries or features."""
    if units == features:
        return [], []
    queries = units
    for part in block.unit_width[1:]:
        queries *= part if isinstance(part, int) else _read(trace.layer, part)
    meanings = {features: "features", queries: "queries", units: "units"}
    own = [
        (f"{path}.{name}", meanings[value])
        for path, name, value in _integers(trace.layer, block.module)
        if value in meanings and f"{path}.{name}" not in block.unit_width and not name.startswith("layer")
    ]
    config = getattr(trace.layer.get_submodule(block.module), "config", None)
    kept = config.to_dict() if isinstance(config, PreTrainedConfig) else {}
    names = [name for name in (*HEADS, *KEY_VALUE_HEADS) if name in kept and kept[name] in meanings]
    return own, [(f"{block.module}.config.{name}", meanings[kept[name]]) for name in names]


def _unit_parameters(trace: LayerTrace, block: Block, flow: Flow, units: int, features: int) -> dict[str, int]:
    """Parameters outside the producers that divide among units, with the dimension that does."""
    if units == features:
        return {}
    found = {}
    for path, parameter in trace.layer.named_parameters():
        owner = path.rpartition(".")[0]
        if owner in (*flow.producers, flow.consumer):
            continue
        if path.startswith(block.module + ".") or owner in flow.others:
            sizes = list(parameter.shape)
            is_table = isinstance(trace.layer.get_submodule(owner), nn.Embedding)
            size = next((size for size in ((units,) if is_table else (features, units)) if size in sizes), None)
            if size is not None:
                found[path] = sizes.index(size)
    return found


def _is_exact(trace: LayerTrace, block: Block, kind: str, units: int) -> bool:
    """Whether the traced layer without some units computes what it computes while they are masked."""
    if units == 1:
        return True
    family = Family(layers="layers", blocks={kind: block}, mid_stream=None, embeddings=None)
    for keep in (torch.arange(units) > 0, torch.arange(units) == units // 2):
        sublayer = Sublayer(trace.layer, 0, kind, family)
        try:
            with masked({sublayer: keep.to(trace.stream)}):
                expected = trace.call().result
            small = copy.deepcopy(trace.layer)
            shrink(Sublayer(small, 0, kind, family), keep)
            actual = trace.call(layer=small).result
        except (RuntimeError, ValueError, IndexError, AttributeError, TypeError, KeyError):
            return False  # the fields do not fit the module
        if not is_close(actual, expected):
            return False
    return True
