import pytest

from kprune.maths.flops import unit_flops


@pytest.mark.parametrize("s", [1.0, 12.5, 384.0])
@pytest.mark.parametrize(("d", "width"), [(32, 8), (768, 64)])
def test_the_papers_formulas(s, d, width):
    assert unit_flops(4 * d * width, s, width) == 8 * s * d * width + 4 * s * s * width
    assert unit_flops(2 * d, s) == 4 * s * d


@pytest.mark.parametrize("s", [1, 7, 64])
def test_causal_attention_counts_the_pairs_that_are_seen(s):
    pairs = sum(1 for query in range(s) for key in range(s) if key <= query)
    assert unit_flops(100, s, 8, causal=True) == 2 * s * 100 + 4 * pairs * 8
    assert unit_flops(100, s, causal=True) == unit_flops(100, s)
