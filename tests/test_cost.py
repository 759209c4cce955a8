import pytest
import tiny
import torch
from torch.utils.flop_counter import FlopCounterMode

from kprune.budget import flops_per_unit, total_flops
from kprune.sublayer import find, shrink


def counted(model, length: int) -> float:
    """FLOPs of the layers alone, as torch counts the matrix products that run."""
    base = model.base_model
    encoder = next(name for name in ("encoder", "transformer") if hasattr(base, name))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.full((1, length), 7))
    return sum(counter.get_flop_counts()[f"{type(base).__name__}.{encoder}"].values())


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
@pytest.mark.parametrize("length", [7, 40])
def test_flops_agree_with_torchs_own_counter(family, length):
    model = tiny.tiny_model(family, "embedding", attn_implementation="eager")
    assert total_flops(find(model), length) == pytest.approx(counted(model, length), rel=1e-3)
    # One layer with fewer units, one with emptied sublayers, one whole.
    for sublayer in find(model)[:2]:
        shrink(sublayer, torch.arange(sublayer.units) % 3 == 0)
    for sublayer in find(model)[2:4]:
        shrink(sublayer, torch.zeros(sublayer.units, dtype=torch.bool))
    assert total_flops(find(model), length) == pytest.approx(counted(model, length), rel=1e-3)


def test_the_papers_formulas():
    model = tiny.tiny_model()
    attention, ffn = find(model)[:2]
    s, d, width = 12.5, 32, 8
    assert flops_per_unit(attention, s) == 8 * s * d * width + 4 * s * s * width
    assert flops_per_unit(ffn, s) == 4 * s * d
