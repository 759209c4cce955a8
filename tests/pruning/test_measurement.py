import pytest
import tiny
import torch
from torch.utils.flop_counter import FlopCounterMode

from kprune.config import PruneConfig
from kprune.errors import KpruneError, NotFinite
from kprune.models.outputs import kind_of
from kprune.models.resize import shrink
from kprune.models.sublayer import find
from kprune.pruning.budgets import flops_per_unit
from kprune.pruning.criteria import CRITERIA
from kprune.pruning.measurement import Measured, measure, require_knowledge
from kprune.pruning.registry import resolve
from kprune.pruning.streams import Streams
from kprune.pruning.teacher import TeacherPredictions


def predictions_of(model):
    return TeacherPredictions(model, kind_of(model), tiny.sample_of(tiny.texts()))


def config_for(criterion, **changes):
    return resolve(PruneConfig(criterion=criterion, **changes), head_width=8)


def scores_of(student, sublayers, costs, predictions, config, streams=None):
    streams = streams or Streams(predictions.teacher, student, predictions.sample)
    criterion = CRITERIA[config.criterion]
    found = measure(student, sublayers, costs, streams.student, predictions, criterion, config)
    return [each.scores for each in found]


@pytest.mark.parametrize("criterion", CRITERIA)
def test_scores_are_equation_9(criterion):
    """Z = μ (K_pred + λ K_rep) / F: linear in λ, heads weighted by μ, divided by FLOPs."""
    teacher = tiny.tiny_model().requires_grad_(False)
    student = tiny.tiny_model().requires_grad_(False)
    shrink(find(student)[0], torch.tensor([True, True, True, False]))
    predictions, sublayers = predictions_of(teacher), find(student)
    costs = [flops_per_unit(sublayer, 10.0) for sublayer in sublayers]
    ones = [1.0] * len(costs)
    head_weight, rep_weight = 3.0, 0.5
    plain = config_for(criterion, head_weight=1.0, rep_weight=rep_weight)
    knowledge = scores_of(student, sublayers, ones, predictions, plain)
    weighted = config_for(criterion, head_weight=head_weight, rep_weight=rep_weight)
    scores = scores_of(student, sublayers, costs, predictions, weighted)
    for sublayer, cost, k, z in zip(sublayers, costs, knowledge, scores, strict=True):
        weight = head_weight if sublayer.kind == "attention" else 1.0
        torch.testing.assert_close(z, weight * k / cost)
    if criterion == "compensated":  # λ is a part of its sums, and not linear
        return
    predictive, twice = (
        scores_of(student, sublayers, ones, predictions, config_for(criterion, head_weight=1.0, rep_weight=value))
        for value in (0.0, 2 * rep_weight)
    )
    for k, k_pred, more in zip(knowledge, predictive, twice, strict=True):
        torch.testing.assert_close(more - k, k - k_pred, rtol=1e-4, atol=1e-6 * float(more.max()))
        assert (k > k_pred).all()


def test_a_failing_measurement_leaves_no_hook_behind(monkeypatch):
    teacher = tiny.tiny_model("distilbert").requires_grad_(False)
    predictions = predictions_of(teacher)
    monkeypatch.setattr(teacher.base_model.transformer.layer[-1].ffn.activation, "forward", lambda tensor: 1 / 0)
    streams = Streams(teacher, teacher, predictions.sample)
    with pytest.raises(ZeroDivisionError):
        scores_of(teacher, find(teacher), [1.0] * 6, predictions, config_for("fisher"), streams)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in teacher.modules())


@pytest.mark.parametrize(
    ("family", "criterion"),
    [*((name, "fisher") for name in tiny.CORE_FAMILIES), ("bert", "compensated"), ("distilbert", "compensated")],
)
@pytest.mark.parametrize(("lowest", "emptied"), [(0, None), (4, None), (5, None), (0, 4), (0, 5)])
def test_what_is_spared_changes_no_knowledge(family, criterion, lowest, emptied):
    teacher = tiny.tiny_model(family).requires_grad_(False)
    student = tiny.tiny_model(family).requires_grad_(False)
    bottom = find(student)[1]
    shrink(bottom, torch.arange(bottom.units) % 3 > 0)
    if emptied:
        shrink(find(student)[emptied], torch.zeros(find(student)[emptied].units, dtype=torch.bool))
    sublayers = [sublayer for sublayer in find(student)[lowest:] if sublayer.units]
    sample = tiny.sample_of(tiny.texts())
    streams = Streams(teacher, student, sample, are_equal=False)
    streams.advance_to(sublayers[0])
    scores, flops = {}, {}
    for is_saved in (True, False):
        predictions = TeacherPredictions(teacher, kind_of(teacher), sample)
        assert predictions._use_first_token
        predictions.__dict__["_use_first_token"] = is_saved
        with FlopCounterMode(display=False) as counter:
            scores[is_saved] = scores_of(
                student, sublayers, [1.0] * len(sublayers), predictions, config_for(criterion), streams
            )
        flops[is_saved] = counter.get_total_flops()
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in student.modules())
    assert flops[True] < flops[False]
    for saved, full in zip(scores[True], scores[False], strict=True):
        assert bool(full.any())
        torch.testing.assert_close(saved, full, rtol=1e-4, atol=1e-6 * float(full.max()))


def test_scores_that_are_not_finite_name_their_sublayer():
    model = tiny.tiny_model().requires_grad_(False)
    with pytest.raises(NotFinite, match="the knowledge measured in layer 0 attention is not finite; load"):
        scores_of(model, find(model), [0.0] * 6, predictions_of(model), config_for("fisher"))


def test_scores_of_zero_everywhere_are_refused():
    some, none = Measured(torch.tensor([0.0, 1.0])), Measured(torch.zeros(3))
    require_knowledge([none, some], config_for("paper"))
    with pytest.raises(KpruneError, match=r"criterion 'paper' with rep_weight 0.00025 finds no knowledge in any unit"):
        require_knowledge([none, none], config_for("paper"))
