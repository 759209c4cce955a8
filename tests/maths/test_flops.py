import pytest

from kprune.maths.flops import unit_flops


@pytest.mark.parametrize("s", [1.0, 12.5, 384.0])
@pytest.mark.parametrize(("d", "width"), [(32, 8), (768, 64)])
def test_the_papers_formulas(s, d, width):
    assert unit_flops(4 * d * width, s, width) == 8 * s * d * width + 4 * s * s * width
    assert unit_flops(2 * d, s) == 4 * s * d
