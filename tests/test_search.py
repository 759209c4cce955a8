import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kprune.search import score, search

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
    keep = search(torch.tensor(scores), torch.tensor(costs), budget).tolist()
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
    keep = search(scores, costs, budget)
    spent = float(costs[keep].sum())
    assert spent <= budget
    if not keep.all():
        assert budget - spent < 40.0
    if keep.any() and not keep.all():
        assert scores[keep].min() >= scores[~keep].max()


def test_equal_scores_are_taken_in_order():
    assert search(torch.zeros(4), torch.ones(4), 2.0).tolist() == [True, True, False, False]


def test_score_is_equation_9():
    z = score(torch.tensor([1.0]), torch.tensor([10.0]), 4.0, rep_weight=0.5, unit_weight=2.0)
    assert z.tolist() == pytest.approx([2.0 * (1.0 + 0.5 * 10.0) / 4.0])
