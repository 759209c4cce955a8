"""The rivals, part by part, against brute force."""

from itertools import combinations

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kprune import KpruneError, Pruner, prune
from kprune.deploy.latency import Latency
from kprune.maths.least_squares import LeastSquares
from kprune.models.hooks import masked
from kprune.models.resize import shrink
from kprune.models.sublayer import find
from kprune.pruning.baselines import kcm, kwon, magnitude, ziplm
from kprune.pruning.baselines.task_gradients import task_gradients
from kprune.pruning.budgets import budget_named
from kprune.pruning.choices import DYNAMIC
from kprune.pruning.registry import METHODS
from kprune.pruning.run import Run, mask_of

RIVALS = [name for name in METHODS if name != "kprune"]


@pytest.fixture(autouse=True)
def few_coefficients(monkeypatch):
    """The ZipLM-style rival tries few models."""
    monkeypatch.setattr(ziplm, "DRAWN", 1)
    monkeypatch.setattr(ziplm, "MUTATED", 1)


def labelled(kind="classification"):
    batches = tiny.batched(tiny.texts())
    generator = torch.Generator().manual_seed(1)
    for batch in batches:
        if kind in ("classification", "regression"):
            batch["labels"] = torch.randint(0, 3, (len(batch["input_ids"]),), generator=generator)
    return batches


def pruner(family="bert", kind="classification", labels=True, **options) -> Pruner:
    batches = labelled(kind) if labels else tiny.batched(tiny.texts())
    return Pruner(tiny.tiny_model(family, kind), batches, **options)


def dense_run(pruner):
    return Run(pruner.shared, pruner.config, budget_named("flops"))


@pytest.fixture(scope="module")
def shared_pruner():
    """A pruner whose model and sample no test changes."""
    return pruner()


LIKE_BERT = {"camembert", "xlm-roberta", *tiny.ALIAS_CONFIGS}
"""Families with the row of another one; rivals see nothing else of them."""


@pytest.mark.parametrize(
    "family",
    [pytest.param(each, marks=[pytest.mark.slow] * (each in LIKE_BERT)) for each in tiny.ALL_FAMILIES],
)
def test_every_method_gives_a_smaller_model_within_the_budget(family):
    made = pruner(family)
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    slow = {"ziplm", "dynabert-w", "dynabert-d"} if family not in ("bert", "llama") else set()
    for method in (each for each in METHODS if each not in slow | DYNAMIC):
        reports = []
        pruned = made.with_config(method=method, **tiny.QUICK.get(method, {})).prune(0.3, progress=reports.append)
        assert 0.3 <= pruned.reduction < 0.3 + (0.13 if family == "llama" else 0.06)  # less than a head
        assert pruned.parameters[1] < pruned.parameters[0]
        assert pruned.config.method == method
        assert pruned.config.criterion == ("compensated" if method == "kprune" else None)
        assert pruned.model.config.quantization_config["history"][-1]["method"] == method
        assert all(torch.equal(value, before[name]) for name, value in made.model.state_dict().items())
        fractions = [report.fraction for report in reports]
        assert fractions == sorted(fractions)
        assert (fractions[0], fractions[-1]) == (0.0, pytest.approx(1.0))
        steps = [report.step for report in reports if report.step is not None]
        assert steps == list(pruned.steps)
        assert len(reports) > 2 * len(steps)  # also batch by batch


@pytest.mark.parametrize("method", RIVALS)
def test_a_method_by_keyword_is_the_pruners_own(method, shared_pruner):
    quick = tiny.QUICK.get(method, {})
    expected = shared_pruner.with_config(method=method, **quick).prune(0.3)
    again = prune(tiny.tiny_model(), labelled(), method=method, reduction=0.3, **quick)
    assert [step.kept for step in again.steps] == [step.kept for step in expected.steps]
    assert all(map(torch.equal, again.model.state_dict().values(), expected.model.state_dict().values()))


@pytest.mark.parametrize("method", ["wanda-sp", "textpruner", "magnitude", "random"])
def test_methods_without_a_fit_leave_the_weights_as_they_were(method, shared_pruner):
    pruned = shared_pruner.with_config(method=method, **tiny.QUICK.get(method, {})).prune(0.4)
    assert all(step.error_before == step.error_after for step in pruned.steps)
    for dense, small, step in zip(find(shared_pruner.model), find(pruned.model), pruned.steps, strict=True):
        columns = torch.tensor(step.kept).repeat_interleave(dense.width) * dense.width
        columns = columns + torch.arange(dense.width).repeat(len(step.kept))
        assert torch.equal(small.consumer.weight, dense.consumer.weight[:, columns])
        assert torch.equal(small.consumer.bias, dense.consumer.bias)


def test_random_units_follow_the_seed(shared_pruner):
    made = shared_pruner.with_config(method="random")
    kept = {seed: [step.kept for step in made.with_config(seed=seed).prune(0.4).steps] for seed in (0, 1)}
    assert kept[0] != kept[1]
    assert kept[1] == [step.kept for step in made.with_config(seed=1).prune(0.4).steps]


def test_magnitude_keeps_the_largest_weights_per_cost(shared_pruner):
    pruned = shared_pruner.with_config(method="magnitude").prune(0.4)
    run = dense_run(shared_pruner)
    kept, removed = [], []
    for sublayer, cost, step in zip(run.sublayers, run.costs, pruned.steps, strict=True):
        scores = magnitude.squared_norms(sublayer) / cost
        keep = torch.isin(torch.arange(step.units), torch.tensor(step.kept))
        kept += scores[keep].tolist()
        removed += scores[~keep].tolist()
    assert min(kept) >= max(removed)


@pytest.mark.parametrize("method", [method for method in RIVALS if method not in DYNAMIC])
def test_a_rivals_model_can_be_saved_and_loaded(method, shared_pruner, tmp_path):
    pruned = shared_pruner.with_config(method=method, **tiny.QUICK.get(method, {})).prune(0.3)
    pruned.model.save_pretrained(tmp_path)
    loaded = type(pruned.model).from_pretrained(tmp_path)
    assert tiny.same_outputs(pruned.model.eval(), loaded.eval(), tiny.batched(tiny.texts())[0])


units = st.lists(st.integers(0, 50), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(units, units, st.integers(2, 9), st.integers(1, 3), st.floats(0.05, 1.0))
def test_kwons_search_is_the_best_of_all_choices(heads, neurons, head_cost, neuron_cost, share):
    fishers = [torch.tensor(heads, dtype=torch.float64), torch.tensor(neurons, dtype=torch.float64)]
    costs = [float(head_cost), float(neuron_cost)]
    budget = share * (head_cost * len(heads) + neuron_cost * len(neurons))
    prices = [cost * torch.arange(len(fisher) + 1.0) for cost, fisher in zip(costs, fishers, strict=True)]
    masks = kwon.fisher_search(fishers, [True, False], prices, budget)
    spent = sum(cost * int(mask.sum()) for cost, mask in zip(costs, masks, strict=True))
    assert spent <= budget
    found = sum(float(fisher[mask].sum()) for fisher, mask in zip(fishers, masks, strict=True))
    best = 0.0
    for h in range(len(heads) + 1):
        for n in range(len(neurons) + 1):
            if h * head_cost + n * neuron_cost <= budget:
                for chosen in combinations(heads, h):
                    for others in combinations(neurons, n):
                        best = max(best, float(sum(chosen) + sum(others)))
    assert found == pytest.approx(best)


@pytest.mark.parametrize("method", ["kwon", "liar", "textpruner", "wanda-sp"])
def test_a_budget_of_milliseconds_is_kept(method, shared_pruner):
    """The first units of a sublayer cost far more than the others, so that a mean cost per unit misleads."""
    tables = {"attention": [(0, 0.0), (1, 3.0), (4, 4.0)], "ffn": [(0, 0.0), (16, 8.0), (48, 9.0)]}
    latency = Latency("cpu", "torch", 1, 1, 8, dense=40.0, fixed=1.0, tables=tables, whole=[(0.0, 0.0), (39.0, 39.0)])
    for reduction in (0.3, 0.5):
        made = shared_pruner.with_config(method=method, budget=latency.budget, **tiny.QUICK.get(method, {}))
        pairs = zip(find(shared_pruner.model), made.prune(reduction).steps, strict=True)
        assert sum(float(latency.price(s)[len(step.kept)]) for s, step in pairs) <= (1.0 - reduction) * 39.0


def test_kcms_largest_reduction_can_be_asked_for(shared_pruner):
    made = shared_pruner.with_config(method="kcm")
    with pytest.raises(KpruneError, match="ask for at most") as refused:
        made.prune(0.9)
    largest = float(str(refused.value).rsplit(" ", 1)[1].rstrip("."))
    assert made.prune(largest).reduction >= largest


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 12), st.integers(1, 6), st.integers(0, 10**6))
def test_rearranging_never_raises_the_cost(count, groups, seed):
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(groups, count, generator=generator, dtype=torch.float64)
    keep = torch.rand(count, generator=generator) < 0.5
    after = kwon.rearrange(keep, vectors.square().sum(0), vectors)

    def cost(mask):
        return float(vectors[:, ~mask].sum(1).square().sum())

    assert int(after.sum()) == int(keep.sum())
    assert cost(after) <= cost(keep) + 1e-9


def test_rearranging_finds_removals_that_cancel_out():
    vectors = torch.tensor([[1.0, -1.0, 0.9, 5.0]], dtype=torch.float64)
    keep = torch.tensor([False, True, False, True])  # removes 1.0 and 0.9, which add up
    assert kwon.rearrange(keep, vectors.square().sum(0), vectors).tolist() in (
        [False, False, True, True],
        [True, False, False, True],
    )


def test_task_gradients_are_those_of_masks(shared_pruner):
    run = dense_run(shared_pruner)
    sublayers = run.sublayers
    squares, sums = task_gradients(run.student, run.sublayers, run.shared)
    expected = {sublayer: torch.zeros(sublayer.units) for sublayer in sublayers}
    total = {sublayer: torch.zeros(sublayer.units) for sublayer in sublayers}
    for batch in shared_pruner.shared.sample.batches:
        for row in range(len(batch.example)):
            length = int(batch.mask[row].sum())
            masks = {s: torch.ones(s.units, requires_grad=True) for s in sublayers}
            with masked(masks):
                logits = run.student(
                    **{name: value[row : row + 1, :length] for name, value in batch.inputs.items()}
                ).logits
            torch.nn.functional.cross_entropy(logits, batch.labels[row : row + 1]).backward()
            for sublayer, mask in masks.items():
                expected[sublayer] += mask.grad.square()
                total[sublayer] += mask.grad
    for sublayer, square, group in zip(sublayers, squares, sums, strict=True):
        torch.testing.assert_close(square.float(), expected[sublayer], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(group.sum(0).float(), total[sublayer], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("width", [1, 3])
def test_tuned_masks_satisfy_the_normal_equations(width):
    generator = torch.Generator().manual_seed(0)
    count, outputs, tokens = 5, 7, 60
    features = torch.randn(tokens, count * width, generator=generator, dtype=torch.float64)
    weights = torch.randn(count * width + 1, outputs, generator=generator, dtype=torch.float64)
    weights[-1] = 0.0
    wanted = features @ weights[:-1] + 0.3 * torch.randn(tokens, outputs, generator=generator, dtype=torch.float64)
    problem = LeastSquares(count * width, outputs, torch.device("cpu"))
    problem.add(features, wanted)
    # A column of A is one unit's output, over all tokens and dimensions.
    a = torch.stack(
        [
            (features[:, u * width : (u + 1) * width] @ weights[u * width : (u + 1) * width]).flatten()
            for u in range(count)
        ],
        dim=1,
    )
    gram, missing = kwon.mask_equations(problem, weights, width)
    torch.testing.assert_close(gram, a.T @ a)
    torch.testing.assert_close(missing, a.T @ (wanted.flatten() - a.sum(1)))
    masks = kwon.tuned_masks(problem, weights, width)
    change = masks - 1.0
    if width > 1:
        torch.testing.assert_close((gram + torch.eye(count)) @ change, missing)
    else:  # damped least squares on the normal equations themselves
        torch.testing.assert_close((gram.T @ gram + torch.eye(count)) @ change, gram.T @ missing, rtol=1e-3, atol=1e-2)
    tuned_error = (a @ masks - wanted.flatten()).square().sum()
    assert tuned_error < (a.sum(1) - wanted.flatten()).square().sum()


def test_tuning_stops_where_masks_diverge():
    problem = LeastSquares(1, 1, torch.device("cpu"))
    problem.add(torch.ones(1000, 1), torch.full((1000, 1), 50.0))
    weights = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    assert kwon.tuned_masks(problem, weights, 1) is None


def test_representatives_are_a_fixed_point_and_rank_a_duplicate_low():
    generator = torch.Generator().manual_seed(0)
    vectors = 0.4 * torch.randn(12, 4, generator=generator, dtype=torch.float64)
    vectors[11] = vectors[10]
    found = kcm.representatives(vectors)
    kernel = torch.exp(-torch.cdist(vectors, vectors).square())
    weights = torch.full_like(kernel, 1 / 12)
    for _ in range(2000):
        weights = weights * (kernel / (kernel @ weights)).sqrt()
    updated = weights * (kernel / (kernel @ weights)).sqrt()
    torch.testing.assert_close(updated, weights, rtol=1e-3, atol=1e-6)  # the iteration has one
    assert found[10] == pytest.approx(float(found[11]))
    assert float(found[10]) < float(np.median(found[:10]))


def test_kcm_keeps_heads_and_refuses_what_neurons_cannot_give(shared_pruner):
    made = shared_pruner.with_config(method="kcm")
    pruned = made.prune(0.3)
    assert all(len(step.kept) == step.units for step in pruned.steps if step.kind == "attention")
    with pytest.raises(KpruneError, match=r"kcm removes neurons only and cannot .* 0\.9; ask for at most 0\.\d"):
        made.prune(0.9)


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
def test_magnitude_counts_all_of_a_units_weights(family):
    model = tiny.tiny_model(family).requires_grad_(False)
    for sublayer in find(model)[:2]:
        found = magnitude.squared_norms(sublayer)
        everything = sum(linear.weight.square().sum() for linear in (*sublayer.producers, sublayer.consumer))
        assert float(found.sum()) == pytest.approx(float(everything), rel=1e-5)
        # Without the first unit, what is left is what the others count.
        keep = torch.arange(sublayer.units) > 0
        others = found[1:]
        shrink(sublayer, keep)
        torch.testing.assert_close(magnitude.squared_norms(sublayer), others)


def test_values_without_labels_have_no_loss():
    with pytest.raises(KpruneError, match="a model for regression needs labels; pass a labelled sample"):
        pruner(kind="regression", labels=False, method="kwon").prune(0.4)


@pytest.mark.parametrize("kind", ["question answering", "token classification", "masked language model"])
def test_kwon_takes_the_models_own_choice_where_there_are_no_labels(kind):
    assert pruner(kind=kind, method="kwon").prune(0.4).reduction >= 0.4


@pytest.mark.parametrize("change", [{"criterion": "gradient"}, {"search": "uniform"}, {"refit": False}])
def test_ablations_change_the_result_and_stay_within_the_budget(change, shared_pruner):
    plain = shared_pruner.prune(0.5)
    ablated = shared_pruner.with_config(**change).prune(0.5)
    assert ablated.reduction >= 0.5
    are_kept = [[step.kept for step in pruned.steps] for pruned in (plain, ablated)]
    # Measured once, the units are the same with and without a refit, and what is left of the error is not.
    assert (are_kept[0] == are_kept[1]) == (change == {"refit": False})
    assert [step.error_after for step in ablated.steps] != [step.error_after for step in plain.steps]
    if change == {"search": "uniform"}:
        assert all(len(step.kept) == step.units // 2 for step in ablated.steps)
    if change == {"refit": False}:
        assert all(step.error_before == step.error_after for step in ablated.steps)
        weights = dict(shared_pruner.model.named_parameters())
        sublayer, step = find(ablated.model)[1], ablated.steps[1]
        original = weights["bert.encoder.layer.0.output.dense.weight"]
        assert torch.equal(sublayer.consumer.weight, original[:, list(step.kept)])


@pytest.mark.parametrize("labels", [True, False])
def test_textpruner_removes_units_with_the_least_taylor_importance_step_by_step(labels):
    made = pruner(labels=labels, method="textpruner", iterations=3)
    kept = [mask_of(step.kept, step.units) for step in made.prune(0.5).steps]
    run = dense_run(made)
    masks = {sublayer: torch.ones(sublayer.units) for sublayer in run.sublayers}
    for step in (1, 2, 3):
        importance = taylor_importance(run, masks)
        left = run.dense * (1.0 - 0.5 * step / 3)
        for kind in ("attention", "ffn"):
            places = [place for place, sublayer in enumerate(run.sublayers) if sublayer.kind == kind]
            dense = sum(run.costs[place] * run.sublayers[place].units for place in places)
            allowed = left * dense / run.dense if kind == "attention" else left
            order = sorted(
                (
                    (float(score), place, n)
                    for place in places
                    for n, score in enumerate(importance[run.sublayers[place]])
                ),
                reverse=True,
            )
            for place in places:
                masks[run.sublayers[place]] = torch.zeros(run.sublayers[place].units)
            for _, place, n in order:
                if run.costs[place] > allowed:
                    break
                allowed -= run.costs[place]
                left -= run.costs[place]
                masks[run.sublayers[place]][n] = 1.0
    assert [mask.bool().tolist() for mask in masks.values()] == [keep.tolist() for keep in kept]


def taylor_importance(run, masks):
    """Σ over groups of 32 examples of |Σ g·m|, of every unit of a model whose removed units are masked."""
    groups = -(-run.shared.sample.examples // 32)
    assert groups > 1
    total = {sublayer: torch.zeros(groups, sublayer.units, dtype=torch.float64) for sublayer in run.sublayers}
    for number, batch in enumerate(run.shared.sample.batches):
        for group in (batch.example // 32).unique().tolist():
            rows = batch.example // 32 == group
            leaves = {sublayer: mask.clone().requires_grad_() for sublayer, mask in masks.items()}
            with masked(leaves):
                logits = run.student(**{name: value[rows] for name, value in batch.inputs.items()}).logits
            labels = run.shared.predictions[number].values.argmax(-1) if batch.labels is None else batch.labels
            torch.nn.functional.cross_entropy(logits, labels[rows], reduction="sum").backward()
            for sublayer, leaf in leaves.items():
                total[sublayer][group] += (leaf.grad * leaf.detach()).double()
    return {sublayer: values.abs().sum(0) for sublayer, values in total.items()}


def test_more_steps_of_textpruner_measure_more_often(shared_pruner):
    kept = {
        iterations: [
            step.kept for step in shared_pruner.with_config(method="textpruner", iterations=iterations).prune(0.6).steps
        ]
        for iterations in (1, 8)
    }
    assert kept[1] != kept[8]
    assert shared_pruner.with_config(method="textpruner").config.iterations == 16
    assert shared_pruner.with_config(method="magnitude", iterations=3).config.iterations is None
