"""What removal costs after compensation, against least squares that are solved in full."""

from dataclasses import replace

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kprune import Pruner, prune
from kprune.compensate import EVERY_WAY, Sensitivity, Surgeon, removal_costs
from kprune.measure import objective
from kprune.observe import advance, forward, output_gradients
from kprune.streams import Streams, best_fit
from kprune.sublayer import find

CPU = torch.device("cpu")
BATCHES = tiny.batched(tiny.texts(64))


def first_of(batch):
    first = torch.zeros_like(batch.mask)
    first[:, 0] = True
    return first


def singles(batch):
    """A batch's examples, one by one."""
    halves = batch.halves()
    return [batch] if len(halves) == 1 else [one for half in halves for one in singles(half)]


def problem(units, width, outputs, seed, tokens=200):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(units * width, units * width, generator=generator, dtype=torch.float64)
    features = torch.randn(tokens, units * width, generator=generator, dtype=torch.float64) @ mixing
    return features, torch.randn(outputs, units * width, generator=generator, dtype=torch.float64)


def refitted(features, weight, kept):
    """‖F Wᵀ − F_kept Vᵀ‖² of the best V, and that V."""
    wanted = features @ weight.T
    if not len(kept):
        return float(wanted.square().sum()), weight[:, :0]
    solution = torch.linalg.lstsq(features[:, kept], wanted, driver="gelsd").solution
    return float((features[:, kept] @ solution - wanted).square().sum()), solution.T


def columns(units, width):
    return [unit * width + i for unit in units for i in range(width)]


sizes = st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(1, 4), st.integers(0, 10_000))


@settings(deadline=None)
@given(sizes, st.data())
def test_the_cost_of_a_set_is_the_error_that_the_best_refit_leaves(size, data):
    units, width, outputs, seed = size
    features, weight = problem(units, width, outputs, seed)
    gone = data.draw(st.lists(st.integers(0, units - 1), min_size=1, unique=True))
    surgeon = Surgeon(features.T @ features, weight, width, ridge=1e-13)
    whole = float((features @ weight.T).square().sum())
    # In any number of operations: what one left is where the next begins.
    cost, first = surgeon.remove(torch.tensor(gone[:1])), gone[0]
    for unit in gone[1:]:
        cost += surgeon.remove(torch.tensor([unit]))
    kept = columns([unit for unit in range(units) if unit not in gone], width)
    error, best = refitted(features, weight, kept)
    assert cost == pytest.approx(error, rel=1e-5, abs=1e-8 * whole)
    assert surgeon.units.tolist() == sorted(set(range(units)) - set(gone))
    torch.testing.assert_close(surgeon.weight, best, rtol=1e-4, atol=1e-6)
    at_once = Surgeon(features.T @ features, weight, width, ridge=1e-13)
    alone, _ = refitted(features, weight, columns(set(range(units)) - {first}, width))
    assert at_once.costs()[first] == pytest.approx(alone, rel=1e-5, abs=1e-8 * whole)
    assert at_once.remove(torch.tensor(gone)) == pytest.approx(cost, rel=1e-5, abs=1e-8 * whole)


@settings(deadline=None, max_examples=40)
@given(sizes)
def test_units_go_in_the_order_of_exhaustive_search(size):
    units, width, outputs, seed = size
    features, weight = problem(units, width, outputs, seed)
    whole = float((features @ weight.T).square().sum())
    left, spent, highest, expected = list(range(units)), 0.0, 0.0, {}
    while left:
        errors = {u: refitted(features, weight, columns([v for v in left if v != u], width))[0] for u in left}
        cheapest = min(errors, key=errors.get)
        highest = max(highest, errors[cheapest] - spent)
        expected[cheapest], spent = highest, errors[cheapest]
        left.remove(cheapest)
    found = removal_costs(features.T @ features, weight, width, ridge=1e-13)
    assert found.tolist() == pytest.approx([expected[u] for u in range(units)], rel=1e-4, abs=1e-7 * whole)


def test_of_two_equal_units_one_is_free():
    features, weight = problem(5, 1, 3, 0)
    features[:, 4] = features[:, 2]
    found = removal_costs(features.T @ features, weight, 1, ridge=1e-9)
    assert found.min() < 1e-6 * found.max()
    # Alone, both would be cheap; after one of them, the other is as dear as the two together.
    assert sorted(found.argsort().tolist()[:1])[0] in (2, 4)
    other = 6 - int(found.argmin())
    merged = weight.clone()
    merged[:, 2] += merged[:, 4]
    alone = removal_costs(features[:, :4].T @ features[:, :4], merged[:, :4], 1, ridge=1e-9)
    assert found[other] == pytest.approx(float(alone[2]), rel=1e-4)


def test_features_that_hardly_vary_are_no_trouble():
    """A classifier's first token is much the same everywhere: rounding may make its Gram matrix negative."""
    generator = torch.Generator().manual_seed(0)
    features = 30.0 + 1e-3 * torch.randn(4000, 64, generator=generator)
    features[:, :4] += torch.randn(4000, 4, generator=generator)
    sums = Sensitivity(64, 8, CPU)
    for rows in features.split(50):
        sums.add(rows, torch.randn(len(rows), 8, generator=generator), floor=1e-6)
    gram = sums.gram.matrix
    centred = gram[:-1, :-1] - gram[:-1, -1:] @ gram[-1:, :-1] / gram[-1, -1]
    assert torch.linalg.eigvalsh(centred)[0] < 0  # the case that is meant
    found = sums.knowledge(torch.randn(8, 64, generator=generator), 1, 100, bias=True)
    assert found.isfinite().all()
    assert set(found.argsort(descending=True)[:4].tolist()) == {0, 1, 2, 3}


def test_sums_that_are_no_gram_matrix_are_told():
    with pytest.raises(ArithmeticError, match="not positive"):
        removal_costs(torch.full((4, 4), torch.nan), torch.ones(2, 4), 1)
    sums = Sensitivity(4, 2, CPU)
    sums.add(torch.ones(3, 4), torch.full((3, 2), torch.nan), floor=1e-6)
    with pytest.raises(ArithmeticError, match="not positive"):
        sums.knowledge(torch.ones(2, 4), 1, 3, bias=True)


def test_chunks_remove_as_many_at_a_time():
    features, weight = problem(40, 1, 3, 1)
    gram = features.T @ features
    one_by_one, by_four = (removal_costs(gram, weight, 1, chunk=chunk) for chunk in (0.0, 0.1))
    assert by_four[by_four.argsort()].tolist() == sorted(by_four.tolist())
    first = Surgeon(gram, weight, 1, ridge=1e-4).costs().argsort()[:4]
    assert set(by_four.argsort()[:4].tolist()) == set(first.tolist())
    assert set(one_by_one.argsort()[:4].tolist()) != set(by_four.argsort()[:4].tolist())


def test_sensitivity_is_the_weighted_error_of_the_best_refit_with_its_bias():
    features, weight = problem(6, 1, 4, 3, tokens=300)
    features += 2.0
    gradient = torch.randn(300, 4, dtype=torch.float64) * torch.tensor([3.0, 1.0, 0.1, 0.0]) * torch.rand(300, 1)
    sums = Sensitivity(6, 4, CPU)
    for part in range(3):
        felt = sums.add(features[part::3], gradient[part::3], floor=0.01)
        torch.testing.assert_close(felt, gradient[part::3].square().sum(1) / 8)
    found = sums.knowledge(weight, 1, 50, bias=True)
    felt = gradient.T @ gradient / gradient.square().sum() * 4
    felt = (1 - EVERY_WAY) * felt + EVERY_WAY * torch.eye(4)
    token = (gradient.square().mean(1, keepdim=True) / 2 + 0.01).sqrt()
    wide = torch.cat([features, torch.ones(300, 1)], 1) * token
    errors = []
    for unit in range(6):
        kept = [u for u in range(6) if u != unit]
        wanted = wide[:, :6] @ weight.T
        solution = torch.linalg.lstsq(wide[:, [*kept, 6]], wanted).solution
        wrong = wide[:, [*kept, 6]] @ solution - wanted
        errors.append(float((wrong @ felt * wrong).sum()) / 50)
    assert float(found.min()) == pytest.approx(min(errors), rel=1e-2)
    assert int(found.argmin()) == errors.index(min(errors))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_where_tokens_are_pooled_by_their_mean_examples_are_felt_as_a_whole(pooling, monkeypatch):
    """The sum of an example's token gradients is the gradient of a bias: asked of each example alone."""
    model = tiny.tiny_model("bert", "embedding")
    found = {}
    knowledge = Sensitivity.knowledge
    monkeypatch.setattr(Sensitivity, "knowledge", lambda s, *a, **k: found.setdefault(s, knowledge(s, *a, **k)))
    pruner = Pruner(model, BATCHES[:3], criterion="compensated", pooling=pooling, ridge=1e-4)
    pruner.prune(0.6)
    kind = pruner.references.kind
    for sublayer, sums in zip(find(model), found, strict=True):
        tokens, examples = (torch.zeros(32, 32, dtype=torch.float64) for _ in range(2))
        for one in (one for batch in pruner.sample.batches for one in singles(batch)):
            seen = []
            with output_gradients([sublayer], lambda s, features, gradient: seen.append(gradient[0].double())):  # noqa: B023
                values = kind.read(model(**one.inputs), one)
                loss = objective(kind, values, values.detach(), pruner.settings)
                slope = torch.autograd.grad(loss, sublayer.consumer.bias)[0].double()
            tokens += seen[0].T @ seen[0]
            examples += torch.outer(slope, slope)
        expected = tokens + examples if pooling == "mean" else tokens
        torch.testing.assert_close(sums.directions.matrix, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
@pytest.mark.parametrize("kind", tiny.KIND_NAMES)
def test_every_family_and_kind_is_pruned_after_compensation(family, kind):
    pruned = prune(tiny.tiny_model(family, kind), BATCHES, reduction=0.6, criterion="compensated")
    assert pruned.reduction >= 0.6
    assert pruned.settings.refresh == 0
    assert all(step.error_after <= step.error_before for step in pruned.steps)


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
def test_the_gradients_of_outputs_are_those_of_biases_token_by_token(family):
    model = tiny.tiny_model(family)
    inputs = BATCHES[0]
    sublayers = find(model)
    seen = {}
    with output_gradients(
        sublayers, lambda s, features, gradient: seen.update({s: (features.shape, gradient.sum((0, 1)))})
    ):
        model(**inputs).logits.square().sum().backward()
    assert list(seen) == sublayers[::-1]
    for sublayer, (shape, gradient) in seen.items():
        assert shape == (*inputs["input_ids"].shape, sublayer.features)
        if sublayer.consumer.bias is not None:
            torch.testing.assert_close(gradient, sublayer.consumer.bias.grad)


def test_the_refit_is_best_where_the_predictions_feel_it():
    """A classifier reads the first token: the top FFN is fitted to it, and to the others as far as they count."""
    model = tiny.tiny_model()
    pruner = Pruner(model, BATCHES, criterion="compensated")
    draft = pruner.draft(replace(pruner.settings, reduction=0.6))
    top = draft.sublayers[-1]
    streams = Streams(pruner.teacher, draft.student, pruner.sample)
    found = pruner._measure(draft, 0, streams, lambda: None)[-1]
    batches = pruner.sample.batches
    is_first = torch.cat([batch.real(first_of(batch)[..., None])[:, 0] for batch in batches])
    weights = torch.cat(found.token_weights)
    assert (weights[~is_first] == 1.0).all()  # no other token reaches the output from there
    assert (weights[is_first] > 1.0).all()
    assert float(weights.mean()) == pytest.approx(2.0)

    def error(token_weights):
        student = pruner.draft(replace(pruner.settings, reduction=0.6)).student
        target = find(student)[-1]
        streams = Streams(pruner.teacher, student, pruner.sample)
        streams.move_to(target)
        keep = torch.arange(target.units) < target.units // 8
        streams.remove(target, keep, best_fit(1e-6), token_weights=token_weights)
        wrong = []
        for number, batch in enumerate(batches):
            ours = forward(
                student,
                batch,
                start=top.index + 1,
                stream=advance(student, batch, top.index, streams.student[number], past_attention=True),
            )
            wrong.append(ours.logits - pruner.references[number].values)
        return float(torch.cat(wrong).square().mean())

    assert error(found.token_weights) < error(None)
