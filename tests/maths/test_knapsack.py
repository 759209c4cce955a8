from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kprune.maths.knapsack import best_sizes

sublayers = st.lists(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), min_size=1, max_size=4), min_size=1, max_size=4
)


@settings(max_examples=80, deadline=None)
@given(sublayers, st.integers(1, 30))
def test_the_sizes_are_the_best_of_all_that_fit(choices, budget):
    errors = [torch.tensor([float(error) for error, _ in each]) for each in choices]
    prices = [torch.tensor([float(price) for _, price in each]) for each in choices]
    fitting = [
        sum(error for error, _ in chosen) for chosen in product(*choices) if sum(price for _, price in chosen) <= budget
    ]
    if not fitting:
        with pytest.raises(ArithmeticError, match="no choice"):
            best_sizes(errors, prices, float(budget), buckets=30 * budget)
        return
    sizes = best_sizes(errors, prices, float(budget), buckets=30 * budget)  # whole prices need no rounding
    chosen = [each[size] for each, size in zip(choices, sizes, strict=True)]
    assert sum(price for _, price in chosen) <= budget
    assert sum(error for error, _ in chosen) == min(fitting)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 1.0))
def test_rounding_of_prices_never_exceeds_the_budget(seed, share):
    generator = torch.Generator().manual_seed(seed)
    prices = [torch.rand(5, generator=generator).cumsum(0).double() - 0.01 for _ in range(4)]
    prices = [price - price[0] for price in prices]
    errors = [torch.rand(5, generator=generator).sort(descending=True).values for _ in range(4)]
    budget = share * sum(float(price[-1]) for price in prices)
    sizes = best_sizes(errors, prices, budget, buckets=50)
    assert sum(float(price[size]) for price, size in zip(prices, sizes, strict=True)) <= budget * (1 + 1e-9)
