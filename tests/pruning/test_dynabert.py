"""DynaBERT: its parts against brute force, and its runs."""

from itertools import pairwise

import pytest
import tiny
import torch

from kprune import KpruneError, Pruner
from kprune.models.resize import columns_of
from kprune.models.sublayer import find
from kprune.models.subnetwork import shrunk
from kprune.pruning.baselines import training
from kprune.pruning.baselines.dynabert import DynaBERTDepth, DynaBERTWidth, kept_layers
from kprune.pruning.budgets import budget_named
from kprune.pruning.journal import Journal
from kprune.pruning.run import Run, mask_of

LAYERS = 4


def labelled(model):
    """Batches whose labels follow from the text: whether its first token is even."""
    batches = tiny.batched(tiny.texts(64))
    return [{**batch, "labels": batch["input_ids"][:, 0] % 2} for batch in batches]


@pytest.fixture(scope="module")
def made():
    model = tiny.tiny_model(num_labels=2, num_hidden_layers=LAYERS)
    return Pruner(model, labelled(model), reduction=0.75, epochs=1.0)


def method_of(made, kind, reduction):
    config = made.with_config(method=kind.name, reduction=reduction).config
    return kind(Run(made.shared, config, budget_named("flops")), Journal(), lambda: None)


def task_losses(model, made):
    kind = made.shared.predictions.kind
    with torch.no_grad():
        return sum(float(training.fine_tuning_loss(kind, model, batch)) for batch in made.shared.sample.batches)


def test_layers_of_a_depth_are_spread_from_the_lowest():
    assert kept_layers(12, 1.0) == list(range(12))
    assert kept_layers(12, 0.5) == [0, 2, 4, 6, 8, 10]
    assert kept_layers(12, 0.75) == [0, 1, 2, 4, 5, 6, 8, 9, 10]


def test_three_quarters_removed_are_the_papers_multipliers(made):
    wide, deep = (method_of(made, kind, 0.75) for kind in (DynaBERTWidth, DynaBERTDepth))
    assert [int(mask.sum()) for mask in wide.masks()] == [1, 12] * LAYERS
    assert [int(mask.sum()) for mask in deep.masks()] == [2, 24, 0, 0, 2, 24, 0, 0]
    few = method_of(made, DynaBERTDepth, 0.3)  # half of the layers would be too few
    assert sum(bool(mask.any()) for mask in few.masks()[::2]) == 3


def test_networks_are_nested_and_have_the_most_important_units(made):
    method = method_of(made, DynaBERTWidth, 0.75)
    networks = [method._network(width, width, 1.0) for width in (1.0, 0.75, 0.5, 0.25)]
    for wider, narrower in pairwise(networks):
        assert all(bool((narrow <= wide).all()) for wide, narrow in zip(wider, narrower, strict=True))
    for importance, keep in zip(method._importance, networks[2], strict=True):
        assert float(importance[keep].min()) >= float(importance[~keep].max())


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_the_loss_is_the_outputs_error_and_that_of_the_hidden_states(kind):
    teacher, student = tiny.tiny_model("bert", kind), tiny.tiny_model("bert", kind, seed=1)
    (batch,) = tiny.sample_of(tiny.texts(6), tokens=10_000).batches
    output_kind = Pruner(teacher, tiny.batched(tiny.texts(16)), ridge=1e-2).shared.predictions.kind
    target = training.target_of(output_kind, teacher, batch)
    found = training.distillation_loss(output_kind, student, target, batch, 0.5)
    ours, theirs = (model(**batch.inputs, output_hidden_states=True) for model in (student, teacher))
    if kind == "classification":
        p = theirs.logits.softmax(-1)
        outputs = (p * (p.log() - ours.logits.log_softmax(-1))).sum(-1).mean()
    else:
        outputs = (ours.logits - theirs.logits).square().sum(-1).mean()
    pairs = zip(ours.hidden_states[1:], theirs.hidden_states[1:], strict=True)
    hidden = sum((one[batch.mask] - other[batch.mask]).square().mean() for one, other in pairs)
    torch.testing.assert_close(found, outputs + 0.5 * hidden, rtol=1e-4, atol=1e-5)


def test_hidden_states_are_compared_where_the_next_layer_that_stays_begins():
    """A teacher's layer that the student lacks is learned by the layer below it, as in DynaBERT's code."""
    teacher = tiny.tiny_model(num_hidden_layers=LAYERS)
    masks = [torch.full((s.units,), s.index in (0, 2)) for s in find(teacher)]
    student = shrunk(tiny.tiny_model(num_hidden_layers=LAYERS, seed=1), masks)
    (batch,) = tiny.sample_of(tiny.texts(6), tokens=10_000).batches
    kind = Pruner(teacher, tiny.batched(tiny.texts(16)), ridge=1e-2).shared.predictions.kind
    target = training.target_of(kind, teacher, batch)
    found = [training.distillation_loss(kind, student, target, batch, weight) for weight in (0.0, 1.0)]
    ours, theirs = (model(**batch.inputs, output_hidden_states=True).hidden_states for model in (student, teacher))
    # hidden_states[2] enters layer 2, the next that stays; hidden_states[4] is the last.
    expected = sum((ours[n][batch.mask] - theirs[n][batch.mask]).square().mean() for n in (2, 4))
    torch.testing.assert_close(found[1] - found[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["dynabert-w", "dynabert-d"])
def test_training_lowers_the_loss_on_labels(method, made, monkeypatch):
    monkeypatch.setattr(training, "RATE", 3e-3)
    trained = made.with_config(method=method).prune()
    untrained = made.with_config(method=method, minutes=0.0).prune()
    assert [step.kept for step in trained.steps] == [step.kept for step in untrained.steps]
    assert task_losses(trained.model, made) < 0.95 * task_losses(untrained.model, made)
    assert (trained.config.epochs, trained.config.align, untrained.config.minutes) == (1.0, 1, 0.0)


@pytest.mark.parametrize("limit", [{"minutes": 0.0}, {"epochs": 0.0}], ids=str)
def test_without_time_the_network_has_the_dense_weights(limit, made):
    pruned = made.with_config(method="dynabert-w", **limit).prune()
    for dense, small, step in zip(find(made.model), find(pruned.model), pruned.steps, strict=True):
        columns = columns_of(mask_of(step.kept, step.units), dense.width)
        assert torch.equal(small.consumer.weight, dense.consumer.weight[:, columns])


class Stopped(Exception):
    pass


def test_a_stopped_run_repeats_no_finished_phase(made, tmp_path):
    variant = made.with_config(method="dynabert-d", epochs=0.2)
    expected = variant.prune()
    reports = []

    def stop(report):
        reports.append(report.fraction)
        if report.sublayer == "training" and (tmp_path / "kept/training-001.safetensors").exists():
            raise Stopped

    with pytest.raises(Stopped):
        variant.prune(checkpoint=tmp_path / "kept", progress=stop)
    found = variant.prune(checkpoint=tmp_path / "kept")
    again = variant.prune(checkpoint=tmp_path / "kept")
    for pruned in (found, again):
        ours, theirs = pruned.model.state_dict(), expected.model.state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert reports == sorted(reports)


@pytest.mark.parametrize("kind", ["classification", "question answering", "embedding"])
def test_a_sample_without_labels_is_refused(kind):
    made = Pruner(tiny.tiny_model("bert", kind), tiny.batched(tiny.texts(16)), ridge=1e-2)
    with pytest.raises(
        KpruneError, match=r"dynabert-w trains on labels, and this sample for .* has none; pass a class"
    ):
        made.with_config(method="dynabert-w").prune(0.5)


def test_a_classifier_on_a_decoder_is_trained_too():
    model = tiny.tiny_model("llama", num_labels=2)
    pruned = Pruner(model, labelled(model), ridge=1e-2, method="dynabert-w", epochs=0.1).prune(0.5)
    assert pruned.reduction >= 0.5
