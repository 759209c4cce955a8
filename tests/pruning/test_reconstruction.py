"""LIAR and the ZipLM-style rival against least squares on stored features, and against all choices of sizes."""

from itertools import product

import numpy as np
import pytest
import tiny
import torch
import zoo
from dense_features import FAMILIES, dense_features, dense_run, pruner

from kprune import Pruner
from kprune.deploy.latency import Latency
from kprune.models.outputs import kind_of
from kprune.models.resize import columns_of
from kprune.models.sublayer import find
from kprune.pruning.baselines import ziplm
from kprune.pruning.baselines.feature_moments import feature_grams
from kprune.pruning.baselines.liar import activation_norms
from kprune.pruning.likeness import loss_against_teacher, some_batches
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


def relative_error(weight, f, keep, width):
    """‖ŴF − WF‖² / ‖WF‖² of the best weights of the kept units."""
    wanted = f @ weight.T
    p = f[:, columns_of(keep, width)]
    best = p @ torch.linalg.lstsq(p, wanted).solution if p.shape[1] else 0.0
    return float((best - wanted).square().sum() / wanted.square().sum())


@pytest.mark.parametrize("family", FAMILIES)
def test_ziplms_sizes_are_the_best_of_all_with_equal_coefficients(family, monkeypatch):
    monkeypatch.setattr(ziplm, "DRAWN", 0)
    monkeypatch.setattr(ziplm, "MUTATED", 0)
    made, run = pruner(family), dense_run(family)
    pruned = made.with_config(method="ziplm", ridge=1e-8, align=16).prune(0.6)
    assert (pruned.config.align, pruned.config.refit) == (16, True)
    errors, prices = [], []
    for sublayer, gram, f, price in zip(
        run.sublayers, feature_grams(run, run.sublayers), dense_features(family), run.prices, strict=True
    ):
        weight, step = sublayer.consumer.weight.double(), 16 if sublayer.kind == "ffn" else 1
        order, counts, _ = ziplm.removal_path(gram[:-1, :-1], weight, sublayer.width, per_step=step, ridge=1e-8)
        masks = [mask_of(order[int(count) :].tolist(), sublayer.units) for count in counts]
        errors.append([relative_error(weight, f, mask, sublayer.width) for mask in masks])
        prices.append([float(price[int(mask.sum())]) for mask in masks])
    best = min(
        sum(error[size] for error, size in zip(errors, sizes, strict=True))
        for sizes in product(*map(range, map(len, errors)))
        if sum(price[size] for price, size in zip(prices, sizes, strict=True)) <= run.dense * 0.4
    )
    found = sum(
        relative_error(sublayer.consumer.weight.double(), f, mask_of(step.kept, step.units), sublayer.width)
        for sublayer, f, step in zip(run.sublayers, dense_features(family), pruned.steps, strict=True)
    )
    assert found == pytest.approx(best, rel=1e-3)
    assert all(len(step.kept) % 16 == 0 for step in pruned.steps if step.kind == "ffn")


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_ziplms_weights_are_the_best_without_a_new_bias(family):
    made = pruner(family)
    pruned = made.with_config(method="ziplm", ridge=1e-8).prune(0.6)
    for dense, small, step, f in zip(
        find(made.model), find(pruned.model), pruned.steps, dense_features(family), strict=True
    ):
        keep, weight = mask_of(step.kept, step.units), dense.consumer.weight.detach().double()
        wanted = f @ weight.T
        found = f[:, columns_of(keep, dense.width)] @ small.consumer.weight.detach().double().T
        error = float((found - wanted).square().sum() / wanted.square().sum())
        assert error <= 1.001 * relative_error(weight, f, keep, dense.width) + 1e-6
        assert small.consumer.bias is None or torch.equal(small.consumer.bias, dense.consumer.bias)


def test_ziplm_keeps_a_budget_of_milliseconds():
    made = pruner("bert")
    tables = {"attention": [(0, 0.0), (2, 3.0), (4, 4.0)], "ffn": [(0, 0.0), (16, 1.0), (48, 9.0)]}
    latency = Latency("cpu", "torch", 1, 1, 8, dense=40.0, fixed=1.0, tables=tables, whole=[(0.0, 0.0), (39.0, 39.0)])
    pruned = made.with_config(method="ziplm", budget=latency.budget).prune(0.5)
    spent = sum(float(latency.price(s)[len(step.kept)]) for s, step in zip(find(made.model), pruned.steps, strict=True))
    assert spent <= 0.5 * 39.0


def test_coefficients_are_drawn_then_mutated_and_the_best_is_kept():
    judged = []

    def judge(factors):
        judged.append(factors.clone())
        return float((factors - 0.25).square().sum())

    best = ziplm.search_coefficients(20, 3, judge)
    assert len(judged) == 1 + ziplm.DRAWN + ziplm.MUTATED
    assert bool((judged[0] == 1.0).all())
    losses = [float((factors - 0.25).square().sum()) for factors in judged]
    assert torch.equal(best, judged[losses.index(min(losses))])
    for number in range(1 + ziplm.DRAWN, len(judged)):
        parent = judged[losses.index(min(losses[:number]))]
        assert 1 <= int((judged[number] != parent).sum()) <= 2
    assert torch.equal(ziplm.search_coefficients(20, 3, judge), best)


@pytest.mark.parametrize(("family", "kind"), [("bert", "classification"), ("llama", "causal language model")])
def test_likeness_to_the_teacher_is_the_mean_divergence(family, kind):
    model = zoo.build(family, kind)
    made = Pruner(model, zoo.batches(model, count=3), ridge=1e-2, temperature=1.0)
    with torch.no_grad():
        other = zoo.build(family, kind)
        for parameter in other.parameters():
            parameter.mul_(0.9)
        found = loss_against_teacher(other, made.shared.predictions, made.config, 10**6)
        total, examples = 0.0, 0
        for batch in made.shared.sample.batches:
            p, q = (kind_of(model).read(each(**batch.inputs), batch) for each in (model, other))
            logs = [rows.values.log_softmax(-1) for rows in (p, q)]
            total += float(((logs[0].exp() * (logs[0] - logs[1])).sum(-1) * p.weights).sum())
            examples += len(batch.example)
    assert found == pytest.approx(total / examples, rel=1e-4)


def test_some_batches_are_spread_and_have_about_the_tokens():
    sample = tiny.sample_of(tiny.texts(64), tokens=60)
    assert some_batches(sample, 10**9) == list(range(len(sample.batches)))
    few = some_batches(sample, sample.tokens // 4)
    assert abs(len(few) - len(sample.batches) / 4) <= 1
    assert few == sorted(set(few))
    assert len(some_batches(sample, 1)) == 1
