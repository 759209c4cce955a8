from itertools import product

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kprune.maths.selection import (
    best_pair,
    best_share,
    even_shares,
    groups_of,
    kept_by_count,
    select_groups,
    select_units,
)

units = st.lists(st.tuples(st.integers(0, 8), st.sampled_from([3.0, 40.0])), min_size=1, max_size=60)


def papers_pseudo_code(scores, costs, budget):
    """Algorithm 1, line by line; None where even the best score alone is over the budget."""
    ordered = sorted(scores)
    position, flops = 0, sum(costs)
    threshold = ordered[0]
    while flops > budget:
        if position == len(ordered):
            return None
        threshold = ordered[position]
        flops = sum(cost for value, cost in zip(scores, costs, strict=True) if value >= threshold)
        position += 1
    return [value >= threshold for value in scores]


@given(units, st.floats(0.01, 1.2))
def test_search_agrees_with_the_papers_pseudo_code(drawn, share):
    scores, costs = [float(value) for value, _ in drawn], [cost for _, cost in drawn]
    budget = share * sum(costs)
    keep = select_units(torch.tensor(scores), torch.tensor(costs), budget).tolist()
    expected = papers_pseudo_code(scores, costs, budget)
    kept = set() if expected is None else {i for i, stays in enumerate(expected) if stays}
    ours = {i for i, stays in enumerate(keep) if stays}
    # The paper keeps or drops equal scores together; we spend what is left on the first of them.
    assert kept <= ours
    left = [scores[i] for i in range(len(scores)) if i not in kept]
    assert all(scores[i] == max(left) for i in ours - kept)
    if len(set(scores)) == len(scores):
        assert ours == kept


@given(units, st.floats(0.0, 1.2))
def test_the_budget_is_never_exceeded_and_missed_by_less_than_one_unit(drawn, share):
    scores, costs = torch.tensor([float(v) for v, _ in drawn]), torch.tensor([c for _, c in drawn])
    budget = share * float(costs.sum())
    keep = select_units(scores, costs, budget)
    spent = float(costs[keep].sum())
    assert spent <= budget
    if not keep.all():
        assert budget - spent < 40.0
    if keep.any() and not keep.all():
        assert scores[keep].min() >= scores[~keep].max()


def test_equal_scores_are_taken_in_order():
    assert select_units(torch.zeros(4), torch.ones(4), 2.0).tolist() == [True, True, False, False]


sublayers = st.lists(st.tuples(st.lists(st.integers(0, 8), min_size=1, max_size=40), st.integers(1, 9)), min_size=1)


@given(sublayers, st.floats(0.0, 1.2))
def test_groups_stay_or_go_whole_best_first_within_the_budget(drawn, share):
    scores = [torch.tensor(values, dtype=torch.float64) for values, _ in drawn]
    sizes = [size for _, size in drawn]
    prices = [3.0 * torch.arange(len(values) + 1, dtype=torch.float64) for values in scores]
    budget = share * sum(float(price[-1]) for price in prices)
    masks = select_groups(scores, prices, sizes, budget)
    spent = sum(3.0 * int(mask.sum()) for mask in masks)
    assert spent <= budget
    if not all(mask.all() for mask in masks):
        assert budget - spent < 3.0 * max(sizes)
    for values, mask, size in zip(scores, masks, sizes, strict=True):
        kept = int(mask.sum())
        assert kept % size in (0, len(values) % size)
        if kept and not mask.all() and kept % size == 0:
            assert values[mask].min() >= values[~mask].max()


@given(units, st.floats(0.0, 1.2))
def test_groups_of_one_are_the_plain_search(drawn, share):
    scores, costs = torch.tensor([float(v) for v, _ in drawn]), torch.tensor([c for _, c in drawn])
    budget = share * float(costs.sum())
    heads, neurons = costs == 40.0, costs == 3.0
    # The plain search breaks ties by position, which a split by kind changes: give every unit a score of its own.
    apart = scores + torch.linspace(0, 0.5, len(scores))
    plain = select_units(apart, costs, budget)
    kinds = [kind for kind in (heads, neurons) if kind.any()]
    prices = [float(costs[kind][0]) * torch.arange(int(kind.sum()) + 1) for kind in kinds]
    found = select_groups([apart[kind] for kind in kinds], prices, [1] * len(kinds), budget)
    for kind, mask in zip(kinds, found, strict=True):
        assert mask.tolist() == plain[kind].tolist()


def test_a_price_that_changes_with_the_number_is_paid_as_it_is():
    # The first unit of a sublayer opens it for 10; each further one costs 1.
    price = torch.tensor([0.0, 10.0, 11.0, 12.0], dtype=torch.float64)
    scores = [torch.tensor([3.0, 9.0, 8.0]), torch.tensor([1.0, 2.0, 7.0])]
    masks = select_groups(scores, [price, price], [1, 1], 12.0)
    assert [mask.tolist() for mask in masks] == [[False, True, True], [False, False, False]]
    masks = select_groups(scores, [price, price], [1, 1], 22.0)
    assert [mask.tolist() for mask in masks] == [[True, True, True], [False, False, True]]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.floats(0.0, 1.0))
def test_the_best_share_is_as_large_as_asked_and_has_the_best_scores(values, share):
    scores = torch.tensor(values, dtype=torch.float64)
    keep = best_share(scores, share)
    assert int(keep.sum()) == int(share * len(values) + 1e-9)
    if keep.any() and not keep.all():
        assert scores[keep].min() >= scores[~keep].max()


def test_groups_are_numbered_from_the_best():
    assert groups_of(torch.tensor([1.0, 9.0, 5.0, 9.0, 0.0]), 2).tolist() == [1, 0, 1, 0, 2]


@given(sublayers)
def test_the_best_units_of_each_sublayer_are_kept_together(drawn):
    knowledge = [torch.tensor(values, dtype=torch.float64) for values, _ in drawn]
    counts = torch.arange(min(map(len, knowledge)) + 1)
    expected = [sum(sum(sorted(values, reverse=True)[:count]) for values, _ in drawn) for count in counts.tolist()]
    assert kept_by_count(knowledge, counts).tolist() == expected


curves = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=6)


@given(curves, curves, st.integers(0, 20))
def test_the_best_pair_agrees_with_trying_all(first, second, budget):
    pairs = [(i, j) for i in range(len(first)) for j in range(len(second)) if first[i][1] + second[j][1] <= budget]
    expected = max(pairs, key=lambda pair: first[pair[0]][0] + second[pair[1]][0], default=None)
    columns = [
        [torch.tensor(part, dtype=torch.float64) for part in zip(*curve, strict=True)] for curve in (first, second)
    ]
    kept, costs = zip(*columns, strict=True)
    assert best_pair(kept, costs, budget) == expected


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=0, max_size=3),
    st.lists(st.integers(1, 9), min_size=0, max_size=3),
    st.floats(0.01, 1.0),
)
def test_even_shares_are_the_closest_pair_within_the_budget(heads, neurons, part):
    if not heads and not neurons:
        return
    prices = [7.0 * torch.arange(n + 1) for n in heads] + [torch.arange(n + 1.0) for n in neurons]
    is_head = [True] * len(heads) + [False] * len(neurons)
    budget = part * sum(float(price[-1]) for price in prices)

    def shares(counts):
        return sorted({k / n for n in counts for k in range(n + 1)}) or [1.0]

    def cost(one, two):
        counts = [int((one if head else two) * (len(p) - 1) + 1e-9) for p, head in zip(prices, is_head, strict=True)]
        return sum(float(price[count]) for price, count in zip(prices, counts, strict=True))

    pairs = [pair for pair in product(shares(heads), shares(neurons)) if cost(*pair) <= budget]
    most = {one: max(two for first, two in pairs if first == one) for one, _ in pairs}
    found = even_shares(prices, is_head, budget)
    assert most[found[0]] == found[1]
    assert abs(found[0] - found[1]) == min(abs(one - two) for one, two in most.items())
