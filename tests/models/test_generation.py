"""Generation by pruned decoders equals generation by the dense model while the same units are masked."""

import copy
from functools import cache

import pytest
import torch
import zoo

from kprune.models.hooks import masked
from kprune.models.resize import shrink
from kprune.models.sublayer import find

PROMPT = 10
"""Tokens of the longest prompt: more than the window of families whose attention has one."""
NEW = 5

EMPTIED = {
    "uneven": [],
    "lowest attention empty": [(0, "attention")],
    "middle attention empty": [(1, "attention")],
    "two attentions empty": [(0, "attention"), (1, "attention")],
    "FFNs empty": [(0, "ffn"), (1, "ffn"), (2, "ffn")],
}
"""Sublayers that lose all units; of the others, each keeps another number of units."""


@cache
def dense(name):
    model = zoo.build(name, "causal language model")
    model.generation_config.eos_token_id = None  # all texts get the same length
    model.generation_config.pad_token_id = 1
    return model


@cache
def masks(name, shape):
    """Masks over the dense model's units."""
    generator = torch.Generator().manual_seed(3)
    found = {}
    for sublayer in find(dense(name)):
        keep = torch.rand(sublayer.units, generator=generator) < (0.3, 0.6, 0.8)[sublayer.index]
        keep[sublayer.index % sublayer.units] = True
        if (sublayer.index, sublayer.kind) in EMPTIED[shape]:
            keep[:] = False
        found[sublayer] = keep
    return found


@cache
def pruned(name, shape):
    model = copy.deepcopy(dense(name))
    for sublayer, keep in zip(find(model), masks(name, shape).values(), strict=True):
        shrink(sublayer, keep)
    return model


def masked_units(name, shape):
    return masked({sublayer: keep.float() for sublayer, keep in masks(name, shape).items()})


def prompts():
    """Two texts, the first with padding on the left."""
    ids = torch.randint(5, 99, (2, PROMPT), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    ids[0, :3], mask[0, :3] = 1, 0
    return {"input_ids": ids, "attention_mask": mask}


def longest():
    """The prompt without padding."""
    return {key: value[1:] for key, value in prompts().items()}


def generate(model, inputs, **options):
    torch.manual_seed(0)  # of sampling
    return model.generate(**inputs, max_new_tokens=NEW, **{"do_sample": False, **options})[:, -NEW:]


@torch.no_grad()
def best_tokens(model, ids):
    """Greedy tokens, one whole pass each, and the logits they were chosen by."""
    start, logits = len(ids), []
    for _ in range(NEW):
        logits.append(model(ids[None], use_cache=False).logits[0, -1])
        ids = torch.cat([ids, logits[-1].argmax(-1, keepdim=True)])
    return ids[start:], torch.stack(logits)


@cache
def expected(name, shape):
    """Tokens and logits of the two prompts, each on its own, while units are masked."""
    with masked_units(name, shape):
        ids, mask = prompts().values()
        rows = [best_tokens(dense(name), row[real.bool()]) for row, real in zip(ids, mask, strict=True)]
    tokens, logits = zip(*rows, strict=True)
    return torch.stack(tokens), torch.stack(logits)


@pytest.mark.parametrize("name", zoo.DECODERS)
@pytest.mark.parametrize("shape", EMPTIED)
def test_greedy_tokens_and_logits_are_those_of_masked_units(name, shape):
    tokens, logits = (values[1:] for values in expected(name, shape))
    assert not torch.allclose(logits[0], best_tokens(dense(name), longest()["input_ids"][0])[1], rtol=0.1)
    result = pruned(name, shape).generate(
        **longest(), max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True, output_logits=True
    )
    assert torch.equal(result.sequences[:, -NEW:], tokens)
    torch.testing.assert_close(torch.stack(result.logits, 1), logits, atol=1e-4 * float(logits.abs().max()), rtol=0)


@pytest.mark.parametrize("name", zoo.DECODERS)
@pytest.mark.parametrize("shape", ["lowest attention empty", "middle attention empty"])
def test_texts_padded_on_the_left_are_continued_as_if_alone(name, shape):
    assert torch.equal(generate(pruned(name, shape), prompts()), expected(name, shape)[0])


@pytest.mark.parametrize("name", zoo.DECODERS)
@pytest.mark.parametrize(
    "options", [{"num_beams": 3}, {"do_sample": True, "temperature": 1.5}], ids=["beams", "sampled"]
)
def test_beams_and_samples_are_those_of_masked_units(name, options):
    shape = "lowest attention empty"
    with masked_units(name, shape):
        wanted = generate(dense(name), prompts(), use_cache=False, **options)
    assert torch.equal(generate(pruned(name, shape), prompts(), **options), wanted)


@pytest.mark.parametrize("name", zoo.DECODERS)
def test_an_assistant_changes_no_token(name):
    shape = "lowest attention empty"
    whole, small = dense(name), pruned(name, shape)
    alone = best_tokens(whole, longest()["input_ids"][0])[0]
    assert torch.equal(generate(whole, longest(), assistant_model=small)[0], alone)
    assert torch.equal(generate(small, longest(), assistant_model=whole), expected(name, shape)[0][1:])


@pytest.mark.parametrize("name", zoo.DECODERS)
@pytest.mark.parametrize("shape", ["lowest attention empty", "middle attention empty"])
def test_a_static_cache_gives_the_same_tokens(name, shape):
    if not pruned(name, shape)._can_compile_fullgraph:
        pytest.skip("transformers has no static cache for this family")
    tokens = generate(pruned(name, shape), prompts(), cache_implementation="static")
    assert torch.equal(tokens, expected(name, shape)[0])
