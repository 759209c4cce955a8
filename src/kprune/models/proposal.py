"""A row for a model whose type has none: proposed from a traced layer, accepted only if all laws hold on the model."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kprune.errors import KpruneError, UnsupportedModel
from kprune.models.batches import OTHER_INPUTS, Batch, examples_of, regroup
from kprune.models.block_proposal import Flow, find_flows, is_close, modules_of, propose_block
from kprune.models.canonical import to_canonical
from kprune.models.families import REFUSED, REGISTERED, family_of
from kprune.models.family import Block, Family
from kprune.models.laws import LAWS, LawBroken
from kprune.models.layer_trace import LayerTrace, called_modules, find_layers, noise_like, run_model
from kprune.models.outputs import OutputKind, kind_of

log = logging.getLogger(__name__)

ERRORS = (RuntimeError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError, AssertionError)
"""What a model's own code may raise with a wrong row, or with unusual inputs."""
BY_HAND = "write a row by hand (docs/new-family.md)"

TRACED_TOKENS = 1024
"""Most tokens of the batch on which rows are tried."""


def propose(model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]], *, pooling: str = "mean") -> Family:
    """A row that keeps every law on the model, with these inputs; raises with the broken law if there is none.

    The model is not changed: a float32 copy of it is traced and tried.
    """
    model_type = model.config.model_type
    if model_type in REFUSED:
        family_of(model.config)  # raises with the reason
    kind = kind_of(model, pooling=pooling)
    model = copy.deepcopy(model).float().eval()
    failures: list[tuple[int, KpruneError]] = []
    for path in find_layers(model):
        try:
            batch = trial_batch(model, path, batches)
            for row in _candidates(model, path, batch):
                passed, error = laws_kept(model, row, kind, batch)
                if error is None:
                    return row
                log.info("a proposed row for %r failed: %s", model_type, error)
                failures.append((passed, error))
        except UnsupportedModel as error:
            failures.append((-1, error))
        except ERRORS as error:
            failures.append((-1, UnsupportedModel(f"a pass cannot be traced ({reason(error)}); {BY_HAND}.")))
    raise _refusal(model_type, *max(failures, key=lambda failure: failure[0]))


def _refusal(model_type: str, passed: int, error: KpruneError) -> UnsupportedModel:
    what = "" if passed < 0 else "no row keeps all laws. The best one fails: "
    return UnsupportedModel(f"cannot prune a {model_type!r} model: {what}{error}")


def reason(error: BaseException) -> str:
    """The first line of an error of the model's own code."""
    return (str(error) or type(error).__name__).splitlines()[0]


@contextmanager
def registered(model_type: str, row: Family) -> Iterator[None]:
    """Within the context, models of this type have the row."""
    before = REGISTERED.get(model_type)
    REGISTERED[model_type] = row
    try:
        yield
    finally:
        del REGISTERED[model_type]
        if before is not None:
            REGISTERED[model_type] = before


def laws_kept(model: PreTrainedModel, row: Family, kind: OutputKind, batch: Batch) -> tuple[int, KpruneError | None]:
    """How many laws a row keeps before it breaks one, and the broken one."""
    passed = 0
    with registered(model.config.model_type, row):
        trial = copy.deepcopy(model)
        try:
            to_canonical(trial)
            for law in LAWS.values():
                law(trial, kind, batch)
                passed += 1
        except LawBroken as error:
            return passed, error
        except (*ERRORS, KpruneError) as error:
            return passed, LawBroken(
                f"{list(LAWS)[min(passed, len(LAWS) - 1)]}: the model does not run ({reason(error)})."
            )
    return passed, None


def trial_batch(model: PreTrainedModel, layers: str, batches: Iterable[Mapping[str, Tensor]]) -> Batch:
    """The longest of the given inputs, as one batch."""

    def length_of(inputs: dict[str, Tensor]) -> int:
        on_device = {name: value.to(model.device) for name, value in inputs.items()}
        return LayerTrace.of(model, layers, on_device).stream.shape[1]

    given = [{name: value for name, value in batch.items() if name != "labels"} for batch in batches]
    examples = examples_of(given, length_of)
    pad = getattr(model.config, "pad_token_id", None) or 0
    return regroup(examples, tokens=TRACED_TOKENS, pad_id=pad, device=model.device).batches[0]


def _candidates(model: PreTrainedModel, layers: str, batch: Batch) -> Iterator[Family]:
    """Rows that may describe the model, the likeliest first."""
    bias = _shared_bias(model, layers)
    if bias is not None:
        blank = Block("", "", {}, "", 0)
        skeleton = Family(layers, {"attention": blank}, None, None, shared_bias=bias)
        with registered(model.config.model_type, skeleton):
            to_canonical(model)
    with torch.no_grad():
        has_cache = getattr(run_model(model, batch.inputs), "past_key_values", None) is not None
    options = {"use_cache": False} if has_cache else {}
    trace = LayerTrace.of(model, layers, batch.inputs, **options)
    flows = find_flows(trace)
    blocks = {kind: propose_block(trace, flow, kind, model.config) for kind, flow in flows.items()}
    is_parallel = not set(flows["ffn"].producers) & set(trace.read_by(flows["attention"].consumer))
    is_parallel = is_parallel or flows["ffn"].consumer in flows["attention"].others
    base = Family(
        layers=layers,
        blocks=blocks,
        mid_stream=None,
        embeddings=None,
        layer_returns=_values(trace.returned),
        causal=_is_causal(trace),
        has_cache=has_cache,
        is_parallel=is_parallel,
        shared_bias=bias,
        inputs=next((name for name in OTHER_INPUTS if name in batch.inputs), "input_ids"),
        uncounted="scores of positions" if _reads_positions(trace, flows["attention"]) else None,
        **_positions(model),
    )
    yield from _with_streams(base, trace, flows, _embeddings(model, batch, options))


def _with_streams(
    base: Family, trace: LayerTrace, flows: dict[str, Flow], embeddings: list[str | None]
) -> Iterator[Family]:
    """The row with each choice of modules at which the stream is read and replaced."""
    streams = {"attention": _stream_readers(trace, flows["attention"], trace.stream)}
    streams["ffn"] = (
        _stream_readers(trace, flows["ffn"], trace.stream) if base.is_parallel else _ffn_readers(trace, flows["ffn"])
    )
    for kind, readers in streams.items():
        if not readers:
            raise UnsupportedModel(
                f"no module of a layer reads the stream at its {kind} block; write a row by hand (docs/new-family.md)."
            )
    for reader, ffn_reader in product(streams["attention"][:2], streams["ffn"][:3]):
        middles: list[str | None] = [None] if base.is_parallel else _middles(trace, flows, ffn_reader)
        for middle, module, ffn_module, embedding in product(
            middles, modules_of(flows["attention"]), modules_of(flows["ffn"]), embeddings
        ):
            chosen = {"attention": (reader, module), "ffn": (ffn_reader, ffn_module)}
            blocks = {
                kind: replace(
                    block,
                    residual_input=chosen[kind][0],
                    module=chosen[kind][1],
                    returns=_values(trace.modules.returned[chosen[kind][1]]),
                )
                for kind, block in base.blocks.items()
            }
            yield replace(base, blocks=blocks, mid_stream=middle, embeddings=embedding)


def _values(returned: Any) -> int:
    return max(len(returned), 2) if isinstance(returned, tuple) else 1  # 1 stands for a tensor


def _rows(tensor: Tensor) -> Tensor:
    return tensor.flatten(0, -2)


def _reads(trace: LayerTrace, path: str, stream: Tensor) -> bool:
    seen = trace.modules.stream.get(path)
    return seen is not None and seen.shape[-1] == stream.shape[-1] and is_close(_rows(seen), _rows(stream), 1e-6)


def _stream_readers(trace: LayerTrace, flow: Flow, stream: Tensor) -> list[str]:
    """Modules that read the stream at a sublayer: a producer, or the norm before the producers."""
    producers = [path for path in flow.producers if _reads(trace, path, stream)]
    if producers:
        once = [path for path in producers if len(trace.first.inputs[path]) == 1]
        return [*once[:1], *(path for path in modules_of(flow) if _reads(trace, path, stream))]
    leaves = [path for path in _leaves(trace) if _reads(trace, path, stream)]
    into = trace.modules.stream.get(flow.producers[0])

    def feeds(path: str) -> bool:
        returned = trace.modules.returned[path]
        return into is not None and isinstance(returned, Tensor) and is_close(_rows(returned), _rows(into), 1e-6)

    return sorted(leaves, key=lambda path: not feeds(path))


def _ffn_readers(trace: LayerTrace, flow: Flow) -> list[str]:
    """Modules that read the stream at the FFN: the layer returns it, or a norm of it, if the FFN adds nothing."""
    left = trace.call({flow.consumer: torch.zeros_like}).result
    norms = [module for path in _leaves(trace) if _is_norm(module := trace.layer.get_submodule(path), left)]

    def is_stream(path: str) -> bool:
        seen = trace.modules.stream.get(path)
        if seen is None or seen.shape[-1] != left.shape[-1]:
            return False
        with torch.no_grad():
            return any(is_close(_rows(made), _rows(left)) for made in (seen, *(norm(seen) for norm in norms)))

    producers = [path for path in flow.producers if is_stream(path)]
    order = list(trace.modules.stream)
    # A sandwich norm with a bias adds it even to nothing: then no module reads what the layer returns.
    leaves = [path for path in _leaves(trace) if path in order]
    found = [path for path in leaves if is_stream(path)]
    return producers[:1] or found or leaves


def _leaves(trace: LayerTrace) -> list[str]:
    """Modules without parts, other than Linears, in the order of their calls."""
    return [
        path
        for path in trace.modules.stream
        if path not in trace.projections and not list(trace.layer.get_submodule(path).children())
    ]


def _is_norm(module: nn.Module, stream: Tensor) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.shape == stream.shape[-1:]


def _middles(trace: LayerTrace, flows: dict[str, Flow], ffn_reader: str) -> list[str | None]:
    """Modules that return the stream at the FFN, the outermost first; else None."""
    stream = trace.modules.stream[ffn_reader]
    inside = (*flows["ffn"].producers, flows["attention"].producers[0])
    found = [
        path
        for path, returned in trace.modules.returned.items()
        if isinstance(returned, Tensor)
        and returned.shape[-1] == stream.shape[-1]
        and is_close(_rows(returned), _rows(stream), 1e-6)
        and not any(f"{each}.".startswith(path + ".") for each in inside)
    ]
    return [*sorted(found, key=lambda path: path.count("."))[:2], None]


def _is_causal(trace: LayerTrace) -> bool:
    """Whether the layer's output at earlier tokens stays when the last token's stream changes."""
    noise = noise_like(trace.stream)
    noise[:, :-1] = 0
    changed = trace.call(stream=trace.stream + noise).result
    return torch.equal(changed[:, :-1], trace.first.result[:, :-1])


def _reads_positions(trace: LayerTrace, flow: Flow) -> bool:
    """Whether heads also compare tokens with embedded positions, by Linears of their own or by the same."""
    return bool(flow.others) or any(len(trace.first.inputs[path]) > 1 for path in flow.producers)


def _shared_bias(model: PreTrainedModel, layers: str) -> str | None:
    """A table that only the lowest layer has; other layers then read it from there."""
    tables = [
        {path for path, module in layer.named_modules() if isinstance(module, nn.Embedding)}
        for layer in model.base_model.get_submodule(layers).children()
    ]
    alone = sorted(tables[0] - tables[-1]) if len(tables) > 1 else []
    return alone[0] if alone else None


def _positions(model: PreTrainedModel) -> dict[str, Any]:
    """`Family.positions`, and whether positions start after the padding's number."""
    count = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(count, int) or model.main_input_name != "input_ids":
        return {"positions": None}
    follows = any(
        isinstance(module, nn.Embedding) and module.num_embeddings == count and module.padding_idx is not None
        for name, module in model.base_model.named_modules()
        if "position" in name
    )
    return {"positions_follow_padding": follows}


def _embeddings(model: PreTrainedModel, batch: Batch, options: dict[str, Any]) -> list[str | None]:
    """Modules that passes from higher layers may skip, the outermost first; then none."""
    if "input_values" in batch.inputs or "input_features" in batch.inputs:
        return [None]
    called = called_modules(model, batch.inputs, **options)
    weight = getattr(model.get_input_embeddings(), "weight", None) if "input_ids" in batch.inputs else None
    tokens = [path for path in called if _embeds_tokens(model.base_model.get_submodule(path), weight)]
    whole = [
        path
        for path in called
        if "embed" in path
        and "." not in path
        and (
            weight is None
            or any(isinstance(part, nn.Embedding) for part in model.base_model.get_submodule(path).modules())
        )
    ]
    return [*dict.fromkeys([*whole[-1:], *tokens]), None]


def _embeds_tokens(module: nn.Module, weight: Any) -> bool:
    return isinstance(module, nn.Embedding) and module.weight is weight
