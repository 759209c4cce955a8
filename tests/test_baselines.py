"""The rivals, part by part, against brute force."""

from itertools import combinations

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kprune import KpruneError, Pruner
from kprune.baselines import floor, kcm, kwon
from kprune.methods import METHODS
from kprune.observe import masked
from kprune.prune import find
from kprune.refit import LeastSquares


def silent(progress):
    pass


def pruner(family="bert", kind="classification", labels=True, **options) -> Pruner:
    batches = tiny.batched(tiny.texts())
    generator = torch.Generator().manual_seed(1)
    for batch in batches:
        if labels and kind in ("classification", "regression"):
            batch["labels"] = torch.randint(0, 3, (len(batch["input_ids"]),), generator=generator)
    return Pruner(tiny.tiny_model(family, kind), batches, **options)


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_a_smaller_model_within_the_budget(method, family):
    made = pruner(family)
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    pruned = METHODS[method].prune(made, 0.3, silent)
    assert 0.3 <= pruned.reduction < 0.3 + 0.06  # less than a head
    assert pruned.parameters[1] < pruned.parameters[0]
    assert pruned.settings.criterion == (method if method != "kprune" else "compensated")
    assert all(torch.equal(value, before[name]) for name, value in made.model.state_dict().items())
    again = METHODS[method].prune(pruner(family), 0.3, silent)
    assert [step.kept for step in again.steps] == [step.kept for step in pruned.steps]


@pytest.mark.parametrize("method", ["kwon", "kcm"])
def test_a_rivals_model_can_be_saved_and_loaded(method, tmp_path):
    pruned = METHODS[method].prune(pruner(), 0.3, silent)
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
    masks = kwon.fisher_search(fishers, [True, False], costs, budget)
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


def test_task_gradients_are_those_of_masks():
    made = pruner()
    sublayers = find(made.teacher)
    squares, sums = kwon.task_gradients(made, made.teacher, sublayers)
    expected = {sublayer: torch.zeros(sublayer.units) for sublayer in sublayers}
    total = {sublayer: torch.zeros(sublayer.units) for sublayer in sublayers}
    for batch in made.sample.batches:
        for row in range(len(batch.example)):
            length = int(batch.mask[row].sum())
            masks = {s: torch.ones(s.units, requires_grad=True) for s in sublayers}
            with masked(masks):
                logits = made.teacher(
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
    gram, lacking = kwon.mask_equations(problem, weights, width)
    torch.testing.assert_close(gram, a.T @ a)
    torch.testing.assert_close(lacking, a.T @ (wanted.flatten() - a.sum(1)))
    masks = kwon.tuned(problem, weights, width)
    change = masks - 1.0
    if width > 1:
        torch.testing.assert_close((gram + torch.eye(count)) @ change, lacking)
    else:  # damped least squares on the normal equations themselves
        torch.testing.assert_close((gram.T @ gram + torch.eye(count)) @ change, gram.T @ lacking, rtol=1e-3, atol=1e-2)
    tuned_error = (a @ masks - wanted.flatten()).square().sum()
    assert tuned_error < (a.sum(1) - wanted.flatten()).square().sum()


def test_tuning_stops_where_masks_run_wild():
    problem = LeastSquares(1, 1, torch.device("cpu"))
    problem.add(torch.ones(1000, 1), torch.full((1000, 1), 50.0))
    weights = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    assert kwon.tuned(problem, weights, 1) is None


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


def test_kcm_keeps_heads_and_refuses_what_neurons_cannot_give():
    pruned = METHODS["kcm"].prune(pruner(), 0.3, silent)
    assert all(len(step.kept) == step.units for step in pruned.steps if step.kind == "attention")
    with pytest.raises(KpruneError, match=r"neurons only, and cannot reach a reduction of 0.9; at most 0\."):
        METHODS["kcm"].prune(pruner(), 0.9, silent)


def test_mean_features_are_over_real_tokens():
    made = pruner()
    draft = floor.begin(made, 0.3, "kcm")
    sublayer = next(s for s in draft.sublayers if s.kind == "ffn")
    (found,) = kcm.mean_features(made, draft, [sublayer])
    seen = []
    handle = sublayer.consumer.register_forward_pre_hook(lambda module, args: seen.append(args[0][0].sum(0)))
    with torch.no_grad():
        for text in tiny.texts():
            draft.student(text[None])
    handle.remove()
    torch.testing.assert_close(found.float(), torch.stack(seen).sum(0) / made.sample.tokens, rtol=1e-3, atol=1e-4)


def test_magnitude_counts_all_of_a_units_weights():
    attention = find(tiny.tiny_model().requires_grad_(False))[0]
    head = attention.consumer.weight[:, :8].square().sum() + sum(
        linear.weight[:8].square().sum() for linear in attention.producers
    )
    assert float(floor.norms(attention)[0]) == pytest.approx(float(head), rel=1e-5)


def test_values_without_labels_have_no_loss():
    with pytest.raises(KpruneError, match="a model for regression needs labels"):
        METHODS["kwon"].prune(pruner(kind="regression", labels=False), 0.4, silent)


@pytest.mark.parametrize("kind", ["question answering", "token classification", "masked language model"])
def test_kwon_takes_the_models_own_choice_where_there_are_no_labels(kind):
    assert METHODS["kwon"].prune(pruner(kind=kind), 0.4, silent).reduction >= 0.4


@pytest.mark.parametrize("change", [{"criterion": "gradient"}, {"search": "uniform"}, {"refit": False}])
def test_ablations_change_the_result_and_stay_within_the_budget(change):
    plain = pruner().prune(0.5)
    ablated = pruner(**change).prune(0.5)
    assert ablated.reduction >= 0.5
    are_kept = [[step.kept for step in pruned.steps] for pruned in (plain, ablated)]
    # Measured once, the units are the same with and without a refit, and what is left of the error is not.
    assert (are_kept[0] == are_kept[1]) == (change == {"refit": False})
    assert [step.error_after for step in ablated.steps] != [step.error_after for step in plain.steps]
    if change == {"search": "uniform"}:
        assert all(len(step.kept) == step.units // 2 for step in ablated.steps)
    if change == {"refit": False}:
        assert all(step.error_before == step.error_after for step in ablated.steps)
        weights = dict(pruner().model.named_parameters())
        sublayer, step = find(ablated.model)[1], ablated.steps[1]
        original = weights["bert.encoder.layer.0.output.dense.weight"]
        assert torch.equal(sublayer.consumer.weight, original[:, list(step.kept)])


def test_settings_are_changed_and_the_teachers_predictions_kept():
    made = pruner()
    other = made.with_settings(criterion="released")
    assert other.references is made.references
    alone = pruner(criterion="released")
    assert other.settings == alone.settings
    assert [step.kept for step in other.prune(0.5).steps] == [step.kept for step in alone.prune(0.5).steps]
