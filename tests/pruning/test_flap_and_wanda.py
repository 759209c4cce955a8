"""FLAP and Wanda-sp against brute force, and on every family."""

import pytest
import torch
import zoo
from dense_features import FAMILIES, dense_features, dense_run, features_of, pruner

from kprune import Pruner
from kprune.models import passes
from kprune.models.resize import columns_of
from kprune.models.sublayer import find
from kprune.pruning.baselines import flap, wanda_sp
from kprune.pruning.baselines.feature_moments import feature_moments
from kprune.pruning.run import mask_of


@pytest.mark.parametrize("family", FAMILIES)
def test_moments_are_those_of_all_real_tokens(family):
    run = dense_run(family)
    assert len(dense_features(family)[0]) == run.shared.sample.tokens
    for moments, features in zip(feature_moments(run, run.sublayers), dense_features(family), strict=True):
        torch.testing.assert_close(moments.mean, features.mean(0), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(moments.square, features.square().mean(0), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(moments.variance, features.var(0, correction=0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_wandas_score_is_the_sum_of_weights_times_activations(family):
    run = dense_run(family)
    for sublayer, moments, f in zip(
        run.sublayers, feature_moments(run, run.sublayers), dense_features(family), strict=True
    ):
        found = wanda_sp.weighted_activations(sublayer, moments)
        weight = sublayer.consumer.weight.double()
        for unit in range(0, sublayer.units, 7):
            columns = range(unit * sublayer.width, (unit + 1) * sublayer.width)
            expected = sum(float(weight[:, j].abs().sum() * f[:, j].norm()) for j in columns) / len(f) ** 0.5
            assert float(found[unit]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_flaps_score_is_the_standardised_fluctuation(family):
    run = dense_run(family)
    for sublayer, moments, f in zip(
        run.sublayers, feature_moments(run, run.sublayers), dense_features(family), strict=True
    ):
        weight = sublayer.consumer.weight.double()
        columns = torch.stack(
            [(f[:, j] - f[:, j].mean()).square().mean() * weight[:, j].norm() ** 2 for j in range(f.shape[1])]
        )
        columns = (columns - columns.mean()) / columns.std()
        expected = [float(columns[j : j + sublayer.width].mean()) for j in range(0, len(columns), sublayer.width)]
        assert flap.fluctuations(sublayer, moments).tolist() == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_flap_keeps_the_units_above_one_threshold(family):
    run = dense_run(family)
    scores = [flap.fluctuations(*each) for each in zip(run.sublayers, feature_moments(run, run.sublayers), strict=True)]
    for reduction in (0.1, 0.5, 0.8):
        pruned = pruner(family).with_config(method="flap").prune(reduction)
        keeps = [mask_of(step.kept, step.units) for step in pruned.steps]
        kept = torch.cat([score[keep] for score, keep in zip(scores, keeps, strict=True)])
        removed = [(float(s), n) for n, keep in enumerate(keeps) for s in scores[n][~keep]]
        best, sublayer = max(removed)
        assert float(kept.min()) >= best
        # The best removed unit does not fit the budget.
        spent = sum(float(price[int(keep.sum())]) for price, keep in zip(run.prices, keeps, strict=True))
        allowed = (1.0 - reduction) * run.dense
        assert spent <= allowed < spent + run.costs[sublayer]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("reduction", [0.3, 0.7])
def test_flap_replaces_what_it_removes_by_its_mean(family, reduction):
    made = pruner(family)
    pruned = made.with_config(method="flap").prune(reduction)
    lowest = None
    for number, (dense, small, step, f) in enumerate(
        zip(find(made.model), find(pruned.model), pruned.steps, dense_features(family), strict=True)
    ):
        keep = mask_of(step.kept, step.units)
        columns, removed = columns_of(keep, dense.width), columns_of(~keep, dense.width)
        weight = dense.consumer.weight.detach().double()
        assert torch.equal(small.consumer.weight, dense.consumer.weight[:, columns])
        if not len(removed):
            assert small.has_added_bias is False
            continue
        old = 0.0 if dense.consumer.bias is None else dense.consumer.bias.detach().double()
        new = small.consumer.bias.detach().double()
        added = torch.stack([weight[:, j] * f[:, j].mean() for j in removed.tolist()]).sum(0)
        torch.testing.assert_close(new - old, added, rtol=1e-3, atol=1e-5)
        # The mean output over the sample stays: that of the dense features, and in the lowest one that of the model.
        mean = (f @ weight.T).mean(0) + old
        torch.testing.assert_close((f[:, columns] @ weight[:, columns].T).mean(0) + new, mean, rtol=1e-3, atol=1e-4)
        if lowest is None:
            lowest = number
            (features,) = features_of(pruned.model, [small])
            output = features[:, : small.features] @ small.consumer.weight.detach().double().T + new
            torch.testing.assert_close(output.mean(0), mean, rtol=1e-3, atol=1e-4)
    assert lowest is not None


@pytest.mark.parametrize("family", FAMILIES)
def test_wanda_keeps_the_same_share_of_every_sublayer_of_a_kind(family):
    run = dense_run(family)
    moments = feature_moments(run, run.sublayers)
    for reduction in (0.1, 0.3, 0.5, 0.8):
        pruned = pruner(family).with_config(method="wanda-sp").prune(reduction)
        for kind in ("attention", "ffn"):
            assert len({len(step.kept) for step in pruned.steps if step.kind == kind}) == 1
        assert pruned.reduction >= reduction
        for sublayer, each, step in zip(run.sublayers, moments, pruned.steps, strict=True):
            scores = wanda_sp.weighted_activations(sublayer, each)
            keep = mask_of(step.kept, step.units)
            if keep.any() and not keep.all():
                assert float(scores[keep].min()) >= float(scores[~keep].max())


@pytest.mark.parametrize("name", zoo.marked(zoo.ZOO))
def test_every_family_is_pruned_within_the_budget_and_loaded_again(name, tmp_path):
    model = zoo.build(name)
    batches = zoo.batches(model, count=2)
    made = Pruner(model, batches, ridge=1e-2)
    for method in ("flap", "wanda-sp"):
        pruned = made.with_config(method=method).prune(0.4)
        assert 0.4 <= pruned.reduction < 0.6
        pruned.model.save_pretrained(tmp_path / method)
        loaded = type(model).from_pretrained(tmp_path / method)
        with torch.no_grad():
            ours, theirs = (passes.run(each, batches[0])[0] for each in (pruned.model, loaded))
        assert torch.equal(ours, theirs)
        assert method == "flap" or not any(sublayer.has_added_bias for sublayer in find(loaded))
