"""The search for a native model agrees with trying every shape, and its result works as any pruned model."""

from itertools import pairwise, product

import pytest
import tiny
import zoo

import kprune
from kprune import KpruneError, PruneConfig, Pruner
from kprune.checkpoints.inspection import inspect
from kprune.models.native import history_of
from kprune.models.sublayer import find
from kprune.pruning.knowledge_pruning import KPrune
from kprune.pruning.registry import METHODS

BATCHES = tiny.batched(tiny.texts(64))
OPTIONS = {"native": True, "align": 8, "ridge": 1e-3}


@pytest.fixture(scope="module")
def pruner():
    model = zoo.build("nomic_bert", "classification")
    return Pruner(model, zoo.batches(model, 6), PruneConfig(**OPTIONS))


def units_of(model, kind):
    return [sublayer.units for sublayer in find(model) if sublayer.kind == kind]


@pytest.mark.parametrize("reduction", [0.2, 0.5, 0.75])
def test_the_shape_is_the_one_that_keeps_the_most_knowledge(pruner, reduction):
    result = pruner.prune(reduction)
    shape, sublayers = result.native, find(pruner.model)
    assert set(units_of(result.model, "attention")) == {shape.heads}
    assert set(units_of(result.model, "ffn")) == {shape.neurons}
    measured = pruner.shared.first
    costs = {
        kind: sum(p.weight.numel() for p in (*s.producers, s.consumer)) / s.units
        for s in sublayers[:2]
        for kind in [s.kind]
    }
    length = result.tokens / result.examples
    costs["attention"] += 2 * length * 8  # scores and weighted values
    knowledge = [
        sorted((each.scores * costs[s.kind]).tolist(), reverse=True)
        for each, s in zip(measured, sublayers, strict=True)
    ]
    total = sum(map(sum, knowledge))
    kept = {}
    for heads, neurons in product(range(1, 5), range(8, 49, 8)):
        price = 3 * (heads * costs["attention"] + neurons * costs["ffn"])
        if price <= (1 - reduction) * 3 * (4 * costs["attention"] + 48 * costs["ffn"]):
            counts = {"attention": heads, "ffn": neurons}
            kept[heads, neurons] = sum(
                sum(each[: counts[s.kind]]) for each, s in zip(knowledge, sublayers, strict=True)
            )
    assert max(kept, key=kept.get) == (shape.heads, shape.neurons)
    assert shape.lost == pytest.approx(1 - kept[shape.heads, shape.neurons] / total, abs=1e-3)
    assert shape.lost_freely <= shape.lost


def test_each_layer_keeps_its_own_best_units(pruner):
    result = pruner.prune(0.5)
    for step, measured in zip(result.steps, pruner.shared.first, strict=True):
        best = measured.scores.argsort(descending=True, stable=True)[: len(step.kept)]
        assert sorted(best.tolist()) == list(step.kept)


def test_what_the_free_search_loses_is_what_it_really_loses(pruner):
    lost = pruner.prune(0.5).native.lost_freely
    free = pruner.with_config(native=False)
    result = free.prune(0.5)
    run_costs = [price[1] for price in prices(free)]
    known = [each.scores * cost for each, cost in zip(free.shared.first, run_costs, strict=True)]
    kept = sum(float(each[list(step.kept)].sum()) for each, step in zip(known, result.steps, strict=True))
    assert lost == pytest.approx(1 - kept / float(sum(each.sum() for each in known)), rel=1e-6)


def prices(pruner):
    from kprune.pruning.budgets import FLOPS
    from kprune.pruning.run import prices_of

    return prices_of(find(pruner.model), FLOPS, pruner.shared.sample.mean_length)


def test_more_reduction_never_loses_less(pruner):
    shapes = [pruner.prune(reduction).native for reduction in (0.1, 0.4, 0.7)]
    assert all(before.lost <= after.lost for before, after in pairwise(shapes))


def test_a_resumed_run_keeps_the_shape(pruner, tmp_path):
    finished = []

    class Stopped(Exception):
        pass

    def stop(progress):
        if progress.step is not None:
            finished.append(progress.step)
        elif len(finished) == 2:
            raise Stopped

    whole = pruner.prune(0.5)
    with pytest.raises(Stopped):
        pruner.prune(0.5, checkpoint=tmp_path, progress=stop)
    resumed = pruner.prune(0.5, checkpoint=tmp_path)
    assert resumed.native == whole.native
    assert tiny.same_outputs(resumed.model, whole.model, zoo.batches(pruner.model)[0])


def test_nothing_removed_is_the_dense_model():
    model = tiny.tiny_model()
    result = kprune.prune(model, BATCHES, reduction=0.0, native=True)
    assert tiny.same_outputs(result.model, model, BATCHES[0])
    assert result.native is None
    assert history_of(result.model.config) == []


def test_a_budget_below_the_smallest_shape_is_refused(pruner):
    with pytest.raises(KpruneError, match="too little for 1 heads and 8 neurons in every layer; the largest possible"):
        pruner.prune(0.9)


RIVALS = [("method", name) for name in METHODS if name != KPrune.name]


@pytest.mark.parametrize(("name", "value"), [*RIVALS, ("search", "uniform"), ("bias", True)])
def test_settings_that_contradict_it_are_refused(name, value):
    with pytest.raises(KpruneError, match=f"native is for {name} .* only, not for .*; leave one of them out"):
        PruneConfig(native=True, **{name: value})


def test_a_limit_on_the_drop_tries_reachable_reductions_only(pruner):
    reachable = pruner.reachable
    assert pruner.prune(reachable - 1e-6).reduction <= reachable
    with pytest.raises(KpruneError, match="the largest possible reduction"):
        pruner.prune(reachable + 1e-3)
    assert pruner.with_config(native=False).reachable == 1.0
    assert 0.75 < reachable < 0.8


def test_a_native_folder_is_inspected_healed_and_pruned_again(tmp_path):
    model = tiny.tiny_model()
    first = kprune.prune(model, BATCHES, reduction=0.2, **OPTIONS)
    found = inspect(kprune.save(first, tmp_path / "first"))
    assert (found.shape.dense_heads, found.shape.dense_neurons) == (4, 48)
    assert found.parameters == first.parameters
    assert found.flops == first.flops
    healed = kprune.heal(first.model, model, BATCHES, heal="1x")
    assert "healed" in history_of(healed.model.config)[-1]
    loaded = type(model).from_pretrained(tmp_path / "first")
    second = kprune.prune(loaded, BATCHES, reduction=0.3, align=1)
    found = inspect(kprune.save(second, tmp_path / "second"))
    assert len(found.history) == 2
    assert (found.shape.dense_heads, found.shape.dense_neurons) == (4, 48)
    assert found.parameters == (model.num_parameters(), second.model.num_parameters())
    again = type(model).from_pretrained(tmp_path / "second")
    assert tiny.same_outputs(again, second.model, BATCHES[0])


def test_a_changed_history_is_refused_before_the_run():
    model = tiny.tiny_model()
    model.config.kprune = {"format": 1, "history": "none", "dense": {"attention": 4, "ffn": 48}}
    with pytest.raises(KpruneError, match="has the history 'none', not a list of entries; restore the whole folder"):
        Pruner(model, BATCHES)
