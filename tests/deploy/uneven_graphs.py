"""Models with uneven layers, and how far their graphs are from torch."""

import tiny
import torch

from kprune.models.resize import shrink
from kprune.models.sublayer import find

BATCHES = tiny.batched(tiny.texts(64, longest=60))


def uneven_model(family="bert", kind="classification", **changes):
    """A model of two layers with different numbers of units, an emptied attention and an emptied FFN among them."""
    depth = {"n_layers": 2} if family == "distilbert" else {"num_hidden_layers": 2}
    return prune_unevenly(tiny.tiny_model(family, kind, **{**depth, **changes}))


def prune_unevenly(model):
    """The model after units were removed from its four sublayers: all of the lowest and of the topmost one."""
    for number, sublayer in enumerate(find(model)):
        keep = torch.arange(sublayer.units) % (number + 2) == 0
        shrink(sublayer, keep & (number not in (0, 3)))
    return model


@torch.no_grad()
def largest_difference(model, run, names) -> float:
    """The largest difference from torch on 64 inputs of mixed length, on real tokens only."""
    largest = 0.0
    for batch in BATCHES:
        expected = model(**batch)
        for name, actual in zip(names, run(batch), strict=True):
            gap = (expected[name] - actual).abs()
            if gap.shape[:2] == batch["input_ids"].shape:
                gap = gap[batch["attention_mask"].bool()]
            largest = max(largest, float(gap.max()))
    return largest
