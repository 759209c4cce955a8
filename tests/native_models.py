"""Tiny models whose configs say their pruned shape."""

import torch
import zoo

from kprune.models.canonical import to_canonical
from kprune.models.native import become_native, unit_limits
from kprune.models.resize import shrink
from kprune.models.sublayer import find

REFUSED = {
    "dinov2": "its config has no number for the width of feed-forward blocks",
    "siglip_vision_model": "head.mlp.fc1.weight has shape",
}
"""Families that cannot be native: DINOv2 states a whole ratio, SigLIP's pooling head has the width of the layers."""
NATIVE = [(name, kind) for name, kind in zoo.ONE_EACH if name not in REFUSED]


def native_model(name, kind=None):
    """A model whose layers keep other units each, but as many, and its config says it."""
    model = zoo.build(name, kind)
    to_canonical(model)
    limits = unit_limits(model)
    for sublayer in find(model):
        fewest, most = limits[sublayer.kind]
        units = max(fewest, (most + 1) // 2)
        keep = torch.zeros(sublayer.units, dtype=torch.bool)
        keep[torch.randperm(sublayer.units)[:units]] = True
        shrink(sublayer, keep)
    become_native(model, [{"kprune": "0.2.0"}])
    return model
