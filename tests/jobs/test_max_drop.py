import pytest
import tiny
import torch

from kprune import Evaluation, KpruneError, Pruner, prune
from kprune.evaluation.metrics import Difference, Figure
from kprune.jobs.max_drop import LARGEST, RESOLUTION, largest_reduction, undetectable_drop
from kprune.models.sublayer import find


@pytest.fixture(scope="module")
def pruner() -> Pruner:
    return Pruner(tiny.tiny_model(), tiny.batched(tiny.texts()))


def losing(lost, spread=0.0):
    """A test on which a model with `reduction` removed loses lost(reduction) points, give or take."""

    def examine(pruned):
        value = -lost(pruned.config.reduction)
        gap = Difference("accuracy", value, value - spread, value + spread, 0.5)
        return Evaluation("made up", 10_000, 10_000, (), differences=(gap,))

    return examine


@pytest.mark.parametrize("threshold", [0.1, 0.33, 0.5, 0.77, 0.94])
def test_bisection_finds_where_the_drop_begins(pruner, threshold):
    found = largest_reduction(pruner.prune, losing(lambda reduction: 10 * (reduction > threshold)), 1.0)
    reduction = found.pruned.config.reduction
    assert threshold - RESOLUTION <= reduction <= threshold
    assert found.evaluation.drop.value == 0
    assert len(found.trials) <= 7
    assert all(trial.passed == (trial.reduction <= threshold) for trial in found.trials)


def test_the_guard_holds_the_intervals_end_to_the_limit(pruner):
    examine = losing(lambda reduction: 2 * reduction, spread=0.5)
    guarded = largest_reduction(pruner.prune, examine, 1.0).pruned.config.reduction
    plain = largest_reduction(pruner.prune, examine, 1.0, guard=False).pruned.config.reduction
    assert 0.25 - RESOLUTION <= guarded <= 0.25
    assert 0.5 - RESOLUTION <= plain <= 0.5


def test_few_examples_without_a_change_prove_little(pruner):
    def examine(pruned):
        return Evaluation("made up", 30, 30, (), differences=(Difference("accuracy", 0.0, 0.0, 0.0, 1.0),))

    with pytest.raises(KpruneError, match="30 examples cannot rule out a drop of 1 points: test on 300 or more"):
        largest_reduction(pruner.prune, examine, 1.0)
    assert largest_reduction(pruner.prune, examine, 10.0).trials[0].high == 10.0  # three of thirty


def test_means_that_all_examples_move_need_no_floor(pruner):
    def examine(number):
        gap = Figure("cosine", 99.5, 99.3, 99.7)
        return lambda pruned: Evaluation("made up", number, number, (), fidelity=(gap,))

    assert largest_reduction(pruner.prune, examine(30), 1.0).trials[0].high == pytest.approx(0.7)
    with pytest.raises(KpruneError, match="10 examples cannot rule out"):
        largest_reduction(pruner.prune, examine(10), 1.0)


def test_where_nothing_is_lost_the_largest_is_taken(pruner):
    tried = []
    found = largest_reduction(pruner.prune, losing(lambda reduction: 0.0), 1.0, tried=tried.append)
    assert found.pruned.config.reduction >= LARGEST - RESOLUTION
    assert tuple(tried) == found.trials


@pytest.mark.parametrize(
    ("name", "examples", "expected"),
    [("accuracy", 300, 1.0), ("accuracy", 30, 10.0), ("cosine", 20, 0.0), ("cosine", 19, float("inf"))],
)
def test_counted_answers_hide_three_of_n_and_means_nothing_from_twenty_on(name, examples, expected):
    change = Figure(name, 100.0, 100.0, 100.0)
    if name == "accuracy":
        evaluation = Evaluation("made up", examples, examples, (), differences=(Difference(name, 0, 0, 0, 1),))
    else:
        evaluation = Evaluation("made up", examples, examples, (), fidelity=(change,))
    assert undetectable_drop(evaluation) == expected


def test_where_everything_is_lost_it_says_so(pruner):
    with pytest.raises(KpruneError, match=r"not even a reduction of 1\.5% stays within a drop of 0\.5 points"):
        largest_reduction(pruner.prune, losing(lambda reduction: 5.0), 0.5)
    with pytest.raises(KpruneError, match=r"max_drop is 0, but must be above 0: 1\.0 allows one point"):
        largest_reduction(pruner.prune, losing(lambda reduction: 5.0), 0)


def equals_runs_of_its_own(model, reductions, **settings):
    batches = tiny.batched(tiny.texts())
    shared = Pruner(model, batches, **settings)
    for reduction in reductions:
        ours = shared.prune(reduction)
        alone = prune(model, batches, reduction=reduction, **settings)
        assert [step.kept for step in ours.steps] == [step.kept for step in alone.steps]
        for a, b in zip(ours.model.parameters(), alone.model.parameters(), strict=True):
            assert torch.equal(a, b)
        assert ours.summary() == alone.summary()
        yield ours


@pytest.mark.parametrize("criterion", ["fisher", "compensated", "paper", "released"])
def test_runs_that_share_the_teacher_equal_runs_of_their_own(criterion):
    runs = equals_runs_of_its_own(tiny.tiny_model(), (0.7, 0.3, 0.7), criterion=criterion)
    assert len(list(runs)) == 3


def test_a_run_that_is_the_teachers_equal_up_to_the_top_leaves_its_predictions_as_they_were():
    model = tiny.tiny_model()
    with torch.no_grad():
        find(model)[-1].consumer.weight.mul_(1e-4)  # the first units to go
    runs = equals_runs_of_its_own(model, (0.02, 0.7), criterion="compensated", refresh=1, align=1)
    kept_all = [len(step.kept) == step.units for step in next(runs).steps]
    assert kept_all == [True] * 5 + [False]
    assert len(list(runs)) == 1


def test_reductions_that_cannot_be_reached_are_not_tried(pruner):
    found = largest_reduction(pruner.prune, losing(lambda reduction: 0.0), 1.0, below=0.6)
    assert all(trial.reduction < 0.6 for trial in found.trials)
    assert found.pruned.config.reduction >= 0.6 - 2 * RESOLUTION
