import itertools

import pytest
import tiny
import torch

from kprune.budget import flops_per_unit
from kprune.knowledge import (
    Knowledge,
    ReleasedKnowledge,
    divergence,
    divergence_probe,
    random_signs,
    squared_error,
    squared_error_probe,
)
from kprune.measure import RELEASED_GROUP, References, measure
from kprune.observe import embed, masked
from kprune.outputs import kind_of
from kprune.settings import settings_for
from kprune.sublayer import find, shrink

TEMPERATURE = 2.0


def settings(criterion: str, **changes):
    defaults = {"rep_weight": None, "head_weight": 1.0, "ridge": None, "pooling": "mean", "seed": 0, "head_width": 8}
    return settings_for(reduction=0.5, criterion=criterion, temperature=TEMPERATURE, **{**defaults, **changes})


def measured(student, teacher, kind, sample, chosen):
    """Knowledge of all units of the student, as the pruning loop measures it: scores at a cost of 1."""
    streams = [embed(student, batch).detach() for batch in sample.batches]
    sublayers = [s for s in find(student) if s.units]
    student = student.requires_grad_(False)
    references = References(teacher, kind, sample)
    found = measure(student, sublayers, [1.0] * len(sublayers), streams, references, chosen)
    return [each.scores for each in found]


def a_little_pruned(family="bert", kind="classification"):
    """A student that differs from its teacher in the first layer."""
    teacher, student = tiny.tiny_model(family, kind), tiny.tiny_model(family, kind)
    shrink(find(student)[0], torch.tensor([True, True, True, False]))
    return teacher, student


def knowledge_lost(kind, student, teacher, batch):
    """K of each example, from the models themselves."""
    with torch.no_grad():
        reference = kind.read(teacher(**batch.inputs), batch)
    rows = kind.read(student(**batch.inputs), batch)
    lost = (
        divergence(rows.values, reference.values, rows.weights, TEMPERATURE)
        if kind.is_distribution
        else squared_error(rows.values, reference.values, rows.weights)
    )
    return torch.stack([lost[rows.example == number].sum() for number in batch.example])


@pytest.mark.parametrize("kind_name", tiny.KIND_NAMES)
def test_paper_predictive_knowledge_is_the_mean_of_each_examples_squared_gradient(kind_name):
    teacher, student = a_little_pruned(kind=kind_name)
    kind, sample = kind_of(teacher), tiny.sample_of(tiny.texts(16))
    found = measured(student, teacher, kind, sample, settings("paper", rep_weight=0.0))
    sublayers = [s for s in find(student) if s.units]
    expected = [torch.zeros(s.units) for s in sublayers]
    for batch in sample.batches:
        for row in range(len(batch.example)):
            masks = {s: torch.ones(s.units, requires_grad=True) for s in sublayers}
            with masked(masks):
                knowledge_lost(kind, student, teacher, batch)[row].backward()
            factor = 1 / (2 * TEMPERATURE**2) if kind.is_distribution else 1 / 2
            for total, sublayer in zip(expected, sublayers, strict=True):
                total += factor * masks[sublayer].grad ** 2 / 16
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.float(), theirs, rtol=2e-2, atol=1e-5 * float(theirs.max()))


@pytest.mark.parametrize("kind_name", ["classification", "regression", "multi-label classification"])
def test_fisher_is_the_hessian_diagonal_of_the_knowledge_lost(kind_name):
    model = tiny.tiny_model("bert", kind_name).requires_grad_(False)
    kind, batch = kind_of(model), tiny.sample_of(tiny.texts(6), tokens=1000).batches[0]
    target = find(model)[2]  # four heads
    with torch.no_grad():
        reference = kind.read(model(**batch.inputs), batch)

    def lost_against_reference(mask):
        with masked({target: mask}):
            rows = kind.read(model(**batch.inputs), batch)
        if kind.is_distribution:
            return divergence(rows.values, reference.values, rows.weights, TEMPERATURE).sum() / 6
        return squared_error(rows.values, reference.values, rows.weights).sum() / 6

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        hessian = torch.autograd.functional.hessian(lost_against_reference, torch.ones(4))
    second_order = 0.5 * hessian.diagonal()

    # The mean over every pattern of signs is exact; each row of an example has its own signs.
    rows_per_example, classes = len(reference.values) // 6, reference.values.shape[-1]
    patterns = list(itertools.product([-1.0, 1.0], repeat=rows_per_example * classes))
    total = torch.zeros(4)
    for pattern in patterns:
        signs = torch.tensor(pattern).view(rows_per_example, classes).repeat(6, 1)
        mask = torch.ones(6, 1, 4, requires_grad=True)
        with masked({target: mask}):
            rows = kind.read(model(**batch.inputs), batch)
        if kind.is_distribution:
            probe = divergence_probe(rows.values, reference.values, rows.weights, signs, TEMPERATURE)
        else:
            probe = squared_error_probe(rows.values, rows.weights, signs)
        probe.sum().backward()
        total += 0.5 * mask.grad[:, 0].square().mean(0) / len(patterns)
    torch.testing.assert_close(total, second_order, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind_name", tiny.KIND_NAMES)
def test_fisher_does_not_vanish_where_the_gradient_of_the_divergence_does(kind_name):
    model, twin = tiny.tiny_model("bert", kind_name), tiny.tiny_model("bert", kind_name)
    kind, sample = kind_of(model), tiny.sample_of(tiny.texts(16))
    fisher = measured(twin, model, kind, sample, settings("fisher", rep_weight=0.0))
    paper = measured(twin, model, kind, sample, settings("paper", rep_weight=0.0))
    for ours, theirs in zip(fisher, paper, strict=True):
        assert float(theirs.sum()) < 1e-6 * float(ours.sum())


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
def test_representational_knowledge_is_the_change_measured_when_the_unit_is_masked(family):
    model = tiny.tiny_model(family, "embedding")
    kind, sample = kind_of(model), tiny.sample_of(tiny.texts(16))
    twin = tiny.tiny_model(family, "embedding")
    found = measured(twin, model, kind, sample, settings("paper", rep_weight=1.0))
    predictive = measured(twin, model, kind, sample, settings("paper", rep_weight=0.0))
    for number, sublayer in enumerate(find(model)):
        for unit in range(0, sublayer.units, 11 if sublayer.kind == "ffn" else 1):
            mask = torch.ones(sublayer.units)
            mask[unit] = 0.0
            change = 0.0
            outputs = []
            handle = sublayer.consumer.register_forward_hook(lambda m, a, out, outputs=outputs: outputs.append(out))
            for batch in sample.batches:
                with torch.no_grad():
                    model(**batch.inputs)
                    with masked({sublayer: mask}):
                        model(**batch.inputs)
                change += float((outputs[-1] - outputs[-2])[batch.mask].square().sum())
            handle.remove()
            ours = float(found[number][unit] - predictive[number][unit])
            assert ours == pytest.approx(change / sample.examples, rel=1e-3)


def test_released_scales_follow_the_authors_recipe():
    """Batch-mean gradients of per-feature masks, squared, averaged over d_h; features per token and over d."""
    teacher, student = a_little_pruned()
    inputs = tiny.texts(3 * RELEASED_GROUP // 2)  # one group and a half
    kind, sample = kind_of(teacher), tiny.sample_of(inputs, tokens=90)
    chosen = settings("released", rep_weight=0.5)
    found = measured(student, teacher, kind, sample, chosen)
    sublayers = [s for s in find(student) if s.units]
    tokens = sum(map(len, inputs))
    for number, sublayer in enumerate(sublayers):
        predictive = torch.zeros(sublayer.units, sublayer.width)
        representational = torch.zeros(sublayer.units, sublayer.width)
        for start in range(0, len(inputs), RELEASED_GROUP):
            group = inputs[start : start + RELEASED_GROUP]
            batch = tiny.sample_of(group, tokens=10_000).batches[0]
            mask = torch.ones(sublayer.features, requires_grad=True)
            seen = []

            def scale(module, args, mask=mask, seen=seen):
                seen.append(args[0].detach())
                return args[0] * mask

            handle = sublayer.consumer.register_forward_pre_hook(scale)
            knowledge_lost(kind, student, teacher, batch).mean().backward()
            handle.remove()
            predictive += 0.5 * mask.grad.view(-1, sublayer.width) ** 2
            energy = seen[0][batch.mask].square().sum(0) * sublayer.consumer.weight.square().mean(0)
            representational += energy.view(-1, sublayer.width)
        expected = predictive.mean(1) / len(inputs) + 0.5 * representational.mean(1) / tokens
        torch.testing.assert_close(found[number].float(), expected, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("criterion", ["paper", "fisher", "compensated", "released"])
@pytest.mark.parametrize("kind_name", ["classification", "question answering", "token classification", "embedding"])
def test_knowledge_does_not_depend_on_how_examples_are_batched(criterion, kind_name):
    teacher, student = a_little_pruned(kind=kind_name)
    kind, inputs = kind_of(teacher), tiny.texts(40)
    chosen = settings(criterion, rep_weight=1e-3)
    alone, together = (
        measured(student, teacher, kind, tiny.sample_of(inputs, tokens=tokens), chosen) for tokens in (1, 700)
    )
    # What a unit costs that others can stand in for is a small difference of large sums.
    least = 1e-5 if criterion == "compensated" else 1e-6
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=least * float(one.max()))


def test_sums_over_parts_of_a_sample_add_up():
    features, gradient = torch.randn(6, 5, 12), torch.randn(6, 12)
    real = torch.ones(6, 5, dtype=torch.bool)
    whole, parts = Knowledge(3, 4, torch.device("cpu")), Knowledge(3, 4, torch.device("cpu"))
    whole.add_features(features, real)
    whole.add_gradient(gradient, torch.arange(6))
    for rows in range(3):
        padded = torch.cat([features[2 * rows : 2 * rows + 2], torch.randn(2, 4, 12)], 1)
        parts.add_features(padded, torch.tensor([1, 1, 1, 1, 1, 0, 0, 0, 0]).bool().expand(2, 9))
        parts.add_gradient(gradient[2 * rows : 2 * rows + 2], torch.arange(2))
    torch.testing.assert_close(parts.predictive(6), whole.predictive(6), rtol=1e-5, atol=0)
    weight = torch.randn(5, 12)
    torch.testing.assert_close(
        parts.representational(weight, 6, 30), whole.representational(weight, 6, 30), rtol=1e-5, atol=0
    )


def test_a_last_group_that_is_not_full_is_averaged_over_its_own_size():
    sums = ReleasedKnowledge(1, 1, torch.device("cpu"), examples=3, group=2)
    sums.add_gradient(torch.tensor([[1.0], [3.0], [5.0]]), torch.arange(3))
    assert sums.predictive(3).tolist() == pytest.approx([(2.0**2 + 5.0**2) / (2 * 3)])


def test_signs_are_fair_and_belong_to_their_row():
    example, position = torch.arange(200).repeat_interleave(10), torch.arange(10).repeat(200)
    signs = random_signs(example, position, 50, seed=3)
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(signs.mean())) < 0.01
    correlations = (signs.T @ signs / len(signs)).fill_diagonal_(0)
    assert float(correlations.abs().max()) < 0.1
    assert abs(float((signs[1:] * signs[:-1]).mean())) < 0.01
    assert torch.equal(random_signs(example[7:9], position[7:9], 20, seed=3), signs[7:9, :20])
    assert not torch.equal(random_signs(example, position, 50, seed=4), signs)


def test_flops_per_unit_divides_scores():
    teacher, student = a_little_pruned()
    kind, sample = kind_of(teacher), tiny.sample_of(tiny.texts(16))
    sublayers = [s for s in find(student) if s.units]
    costs = [flops_per_unit(s, 10.0) for s in sublayers]
    streams = [embed(student, batch).detach() for batch in sample.batches]
    chosen = settings("fisher", head_weight=3.0)
    references = References(teacher, kind, sample)
    student.requires_grad_(False)
    plain = measure(student, sublayers, [1.0] * len(costs), streams, references, settings("fisher"))
    scaled = measure(student, sublayers, costs, streams, references, chosen)
    for sublayer, cost, before, after in zip(sublayers, costs, plain, scaled, strict=True):
        weight = 3.0 if sublayer.kind == "attention" else 1.0
        torch.testing.assert_close(after.scores, weight * before.scores / cost)
