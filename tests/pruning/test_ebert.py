"""EBERT: gates are trained with the model, meet the budget on average, and are part of the result."""

import pytest
import tiny
import torch

from kprune import KpruneError, Pruner, save
from kprune.models.gates import gates_of
from kprune.models.sublayer import find
from kprune.pruning.baselines import ebert, training
from kprune.pruning.budgets import PARAMETERS, flops_per_unit

TOLERANCE = 0.03
"""By how much the mean share of FLOPs may miss the budget: the threshold is set on a part of the sample."""


def labelled():
    """Batches whose labels follow from the text: whether its first token is even."""
    return [{**batch, "labels": batch["input_ids"][:, 0] % 2} for batch in tiny.batched(tiny.texts(96))]


@pytest.fixture(scope="module")
def made():
    return Pruner(tiny.tiny_model(num_labels=2), labelled(), method="ebert", epochs=1.0)


@torch.no_grad()
def mean_share(pruned):
    """The mean share of FLOPs over all inputs: the predictors, and the units whose features are not zero."""
    model, length = pruned.model, pruned.tokens / pruned.examples
    spent, handles = [], []
    for sublayer in find(model):

        def count(module, args, sublayer=sublayer):
            is_open = args[0].unflatten(-1, (-1, sublayer.width)).abs().sum((0, 1, 3)) > 0
            spent.append(int(is_open.sum()) * flops_per_unit(sublayer, length))

        handles.append(sublayer.consumer.register_forward_pre_hook(count))
    rows = [row[None] for batch in labelled() for row in batch["input_ids"]]
    for ids in rows:
        model(input_ids=ids, attention_mask=(ids != 1).long())
    for handle in handles:
        handle.remove()
    return (gates_of(model).overhead + sum(spent) / len(rows)) / pruned.flops[0]


@torch.no_grad()
def drawn_share(pruned):
    """The mean share of FLOPs of gates that are drawn as in training, without a threshold."""
    gates, model = gates_of(pruned.model), pruned.model.train()
    gates.set_threshold(0.0)
    gates.restart()
    for batch in labelled():
        model(**batch)
    model.eval()
    return gates.mean_cost / pruned.flops[0]


def task_loss(model, made):
    kind = made.shared.predictions.kind
    with torch.no_grad():
        return sum(float(training.fine_tuning_loss(kind, model, batch)) for batch in made.shared.sample.batches)


@pytest.mark.parametrize("reduction", [0.3, 0.7])
def test_mean_flops_meet_the_budget_and_are_those_of_the_open_units(reduction, made):
    pruned = made.prune(reduction)
    assert pruned.reduction == pytest.approx(reduction, abs=TOLERANCE)
    assert 1.0 - pruned.reduction == pytest.approx(mean_share(pruned), rel=1e-4)
    assert all(len(step.kept) == step.units for step in pruned.steps)
    assert getattr(pruned.model.config, "quantization_config", None) is None


def test_the_threshold_is_the_smallest_that_meets_the_budget(made, monkeypatch):
    monkeypatch.setattr(ebert, "CALIBRATED", 10_000)
    pruned = made.with_config(epochs=0.5).prune(0.5)
    assert pruned.reduction >= 0.5
    gates = gates_of(pruned.model)
    step = 2 * ebert.LARGEST_THRESHOLD / 2**ebert.HALVINGS
    gates.set_threshold(float(gates.gates[0].threshold) - 1.01 * step)
    assert 1.0 - mean_share(pruned) < 0.5


def test_training_lowers_the_loss_and_pulls_the_mean_flops_to_the_budget(made, monkeypatch):
    monkeypatch.setattr(training, "RATE", 3e-3)
    monkeypatch.setattr(training, "NEW_RATE", 3e-2)
    trained = made.with_config(epochs=8.0).prune(0.5)
    untrained = made.with_config(minutes=0.0).prune(0.5)
    assert task_loss(trained.model, made) < 0.9 * task_loss(untrained.model, made)
    assert abs(drawn_share(trained) - 0.5) < 0.1 < 0.3 < abs(drawn_share(untrained) - 0.5)
    assert (trained.config.epochs, untrained.config.minutes) == (8.0, 0.0)


def test_a_stopped_run_repeats_no_finished_training(made, tmp_path, monkeypatch):
    expected = made.prune(0.5).model.state_dict()
    made.prune(0.5, checkpoint=tmp_path / "kept")

    def repeated(*args, **options):
        raise AssertionError("the training was repeated")

    monkeypatch.setattr(ebert, "train", repeated)
    found = made.prune(0.5, checkpoint=tmp_path / "kept").model.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_same_seed_gives_the_same_gates(made):
    one, same, other = (made.with_config(seed=seed).prune(0.5).model.state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_the_result_cannot_be_saved(made, tmp_path):
    with pytest.raises(KpruneError, match="ebert chooses other units for every text, so that there is no smaller"):
        save(made.with_config(minutes=0.0).prune(0.5), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": "parameters"}, "the method ebert has a budget of flops only"),
        ({"budget": PARAMETERS}, "the method ebert has a budget of flops only"),
        ({"reduction": 0.9965}, "the predictors of ebert alone cost more than the budget"),
    ],
    ids=["budget's name", "budget", "reduction"],
)
def test_what_gates_cannot_do_is_refused(options, message, made):
    with pytest.raises(KpruneError, match=message):
        made.with_config(**options).prune()


def test_a_sample_without_labels_is_refused():
    made = Pruner(tiny.tiny_model(), tiny.batched(tiny.texts(16)), ridge=1e-2, method="ebert")
    with pytest.raises(KpruneError, match=r"ebert trains on labels, and this sample for classification has none"):
        made.prune(0.5)
