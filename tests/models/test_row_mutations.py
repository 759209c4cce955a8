"""A wrong row is never accepted: rows of several families are changed field by field, and each change breaks a law.

The true row and the values that pass through a layer tell which changes are wrong: a module that reads the same stream
is another name for it, and a module that reads other values is an error.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import zoo
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from kprune.errors import KpruneError
from kprune.models.canonical import to_canonical
from kprune.models.families import FAMILIES, family_of
from kprune.models.family import Block, Family
from kprune.models.laws import check_all
from kprune.models.outputs import kind_of
from kprune.models.passes import call, layers_of
from kprune.models.proposal import ERRORS, registered
from kprune.models.sublayer import Sublayer, find

FAMILIES_TRIED = [
    "bert",
    "llama",
    "phi3",
    "gpt2",
    "gpt_neox",
    "gemma2",
    "t5",
    "mpnet",
    "deberta",
    "opt",
    "dinov2",
    "wav2vec2",
]
SIMILAR = {"gpt2", "mpnet", "opt", "wav2vec2"}
"""Families whose rows have the fields of another one's."""
NEEDED_COUNTS = {
    "self_attn.num_key_value_heads",
    "self_attn.config.num_attention_heads",
    "self_attn.num_heads",
    "attn.split_size",
    "attention.self.num_attention_heads",
    "attention.attn.all_head_size",
}
"""Counts without which a family's forward fails or is wrong; the table also rewrites some that no forward reads."""


def with_block(row: Family, kind: str, **changes: object) -> Family:
    return replace(row, blocks={**row.blocks, kind: replace(row.blocks[kind], **changes)})


class Values:
    """First inputs and outputs of the modules in the lowest layer, in one pass."""

    def __init__(self, model, batch) -> None:
        self.layer = layers_of(model)[0]
        self.read: dict[str, Tensor] = {}
        self.made: dict[str, Tensor] = {}
        handles = [
            module.register_forward_hook(self._keep(path), with_kwargs=True)
            for path, module in self.layer.named_modules()
            if path
        ]
        with torch.no_grad():
            call(model, batch)
        for handle in handles:
            handle.remove()

    def _keep(self, path):
        def keep(module, args, kwargs, output):
            first = args[0] if args else kwargs.get("hidden_states")
            if isinstance(first, Tensor):
                self.read[path] = first.flatten(0, -2)
            if isinstance(output, Tensor):
                self.made[path] = output.flatten(0, -2)

        return keep

    def others(self, values: dict[str, Tensor], true: Tensor) -> list[str]:
        """Modules whose value is not the true one."""
        return [path for path, value in values.items() if value.shape != true.shape or not torch.equal(value, true)]


def wrong_rows(row: Family, values: Values, config) -> Iterator[tuple[str, Family]]:
    for kind, block in row.blocks.items():
        for what, wrong in wrong_blocks(row, kind, block, values, config):
            yield f"{kind}: {what}", wrong
    attention, ffn = row.blocks["attention"], row.blocks["ffn"]
    swapped = {"attention": replace(attention, consumer=ffn.consumer), "ffn": replace(ffn, consumer=attention.consumer)}
    yield "consumers of the other block", replace(row, blocks=swapped)
    yield "is_parallel flipped", replace(row, is_parallel=not row.is_parallel)
    yield "causal flipped", replace(row, causal=not row.causal)
    middle = values.read[ffn.residual_input]
    for path in values.others(values.made, middle)[:4]:
        yield f"mid_stream {path}", replace(row, mid_stream=path)
    if row.mid_stream is not None:
        yield "no mid_stream", replace(row, mid_stream=None)
    if row.layer_returns > 1:
        yield "layer_returns 1", replace(row, layer_returns=1)
    else:
        yield "layer_returns 2", replace(row, layer_returns=2)
    if row.shared_bias is not None:
        yield "no shared_bias", replace(row, shared_bias=None)


def wrong_blocks(row: Family, kind: str, block: Block, values: Values, config) -> Iterator[tuple[str, Family]]:
    producers, units = block.producers, block.units_of(config)
    width = Sublayer(values.layer, 0, kind, row).width
    for path, stack in producers.items():
        others = {other: number for other, number in producers.items() if other != path}
        yield (
            f"{path} is the consumer",
            with_block(row, kind, consumer=path, producers={**others, block.consumer: stack}),
        )
        if others:
            yield f"without {path}", with_block(row, kind, producers=others)
        for wrong in (1, 2, 3):
            if wrong != stack:
                yield f"{path} stacked {wrong}", with_block(row, kind, producers={**producers, path: wrong})
    linears = [path for path, module in values.layer.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    for path in linears:
        if path not in (*producers, block.consumer):
            yield f"{path} as a producer", with_block(row, kind, producers={**producers, path: 1})
    yield "one unit less", with_block(row, kind, dense_units=units - 1)
    yield "units of twice the width", with_block(row, kind, unit_width=(2 * width,), dense_units=units // 2)
    if kind == "attention":
        yield "half a head", with_block(row, kind, unit_width=(width // 2,), dense_units=2 * units)
        yield "another width", with_block(row, kind, unit_width=(width // 2,))
    for path in values.others(values.read, values.read[block.residual_input])[:4]:
        yield f"residual_input {path}", with_block(row, kind, residual_input=path)
    yield "is_normed flipped", with_block(row, kind, is_normed=not block.is_normed)
    if block.returns > 1:
        yield "returns 1", with_block(row, kind, returns=1)
    for path, counted in block.counts:
        if path in NEEDED_COUNTS:
            rest = tuple(entry for entry in block.counts if entry[0] != path)
            yield f"without the count {path}", with_block(row, kind, counts=rest)
            other = "features" if counted != "features" else "units"
            yield f"{path} counts {other}", with_block(row, kind, counts=(*rest, (path, other)))
    present = dict(values.layer.named_parameters())
    for path in block.parameters:
        if path in present:
            rest = {other: dim for other, dim in block.parameters.items() if other != path}
            yield f"without the parameter {path}", with_block(row, kind, parameters=rest)
    if block.head_bias is not None:
        yield "no head_bias", with_block(row, kind, head_bias=None)
    if block.output_scale is not None:
        yield "no output_scale", with_block(row, kind, output_scale=None)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each in SIMILAR)) for each in FAMILIES_TRIED]
)
def test_every_wrong_row_breaks_a_law(name, monkeypatch):
    model = zoo.build(name)
    kind, batch, row = kind_of(model), zoo.sample(model).batches[0], family_of(model.config)
    canonical = copy.deepcopy(model)
    to_canonical(canonical)
    values = Values(canonical, batch)
    mutations = list(wrong_rows(row, values, model.config))
    assert len(mutations) > 20
    monkeypatch.delitem(FAMILIES, model.config.model_type)
    accepted = []
    for what, wrong in mutations:
        with registered(model.config.model_type, wrong):
            trial = copy.deepcopy(model)
            try:
                to_canonical(trial)
                check_all(trial, kind, batch)
                accepted.append(what)
            except (KpruneError, *ERRORS):
                pass
    assert accepted == []
    with registered(model.config.model_type, row):  # the true row is accepted in the same way
        assert len(find(canonical)) == 6
        check_all(canonical, kind, batch)
