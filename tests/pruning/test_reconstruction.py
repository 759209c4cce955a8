"""LIAR against least squares on stored features."""

import numpy as np
import pytest
import torch
from dense_features import FAMILIES, dense_features, dense_run, pruner

from kprune.models.resize import columns_of
from kprune.models.sublayer import find
from kprune.pruning.baselines.feature_moments import feature_grams
from kprune.pruning.baselines.liar import activation_norms
from kprune.pruning.run import mask_of


@pytest.mark.parametrize("family", FAMILIES)
def test_grams_are_those_of_all_real_tokens(family):
    run = dense_run(family)
    for gram, f in zip(feature_grams(run, run.sublayers), dense_features(family), strict=True):
        wide = torch.cat([f, torch.ones(len(f), 1)], dim=1)
        torch.testing.assert_close(gram, wide.T @ wide / len(f), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_activation_norm_is_the_mean_energy_of_what_a_unit_adds(family):
    run = dense_run(family)
    grams = feature_grams(run, run.sublayers)
    for sublayer, gram, f in zip(run.sublayers, grams, dense_features(family), strict=True):
        found = activation_norms(sublayer, gram)
        weight = sublayer.consumer.weight.double()
        for unit in range(0, sublayer.units, 5):
            columns = slice(unit * sublayer.width, (unit + 1) * sublayer.width)
            expected = (f[:, columns] @ weight[:, columns].T).square().sum(1).mean()
            assert float(found[unit]) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bias", [False, True])
def test_liars_weights_are_the_least_squares_to_the_sublayers_own_dense_output(family, bias):
    made = pruner(family)
    pruned = made.with_config(method="liar", ridge=1e-8, bias=bias).prune(0.7)
    assert pruned.config.bias == bias
    for dense, small, step, f in zip(
        find(made.model), find(pruned.model), pruned.steps, dense_features(family), strict=True
    ):
        old = 0.0 if dense.consumer.bias is None else dense.consumer.bias.detach().double()
        wanted = f @ dense.consumer.weight.detach().double().T + old
        p = f[:, columns_of(mask_of(step.kept, step.units), dense.width)]
        has_bias = small.consumer.bias is not None
        if has_bias:
            p = torch.cat([p, torch.ones(len(p), 1)], dim=1)
        expected = np.linalg.lstsq(p.numpy(), wanted.numpy(), rcond=None)[0]
        parts = [small.consumer.weight.detach().double().T]
        parts += [small.consumer.bias.detach().double()[None]] if has_bias else []
        best, found = ((p @ torch.as_tensor(x) - wanted).square().sum() for x in (expected, torch.cat(parts)))
        assert float(found) <= 1.001 * float(best) + 1e-6 * float(wanted.square().sum())
