"""Every criterion against brute force: gradients of masks, Hessians, changes that are measured directly."""

import itertools

import pytest
import tiny
import torch

from kprune import KpruneError, Pruner
from kprune.config import PruneConfig
from kprune.maths.losses import divergence, divergence_probe, squared_error, squared_error_probe
from kprune.maths.unit_statistics import SensitivityStatistics
from kprune.models.hooks import masked, on_consumer_output, on_output_grad
from kprune.models.outputs import kind_of
from kprune.models.passes import advance, embed, forward
from kprune.models.resize import shrink
from kprune.models.sublayer import find
from kprune.pruning.budgets import budget_named
from kprune.pruning.criteria import CRITERIA, RELEASED_GROUP, task_loss
from kprune.pruning.journal import Journal
from kprune.pruning.knowledge_pruning import KPrune
from kprune.pruning.measurement import measure
from kprune.pruning.refit import least_squares_fit
from kprune.pruning.registry import resolve
from kprune.pruning.run import Run
from kprune.pruning.streams import Streams
from kprune.pruning.teacher import TeacherPredictions

TEMPERATURE = 2.0
BATCHES = tiny.batched(tiny.texts(64))


def config_for(criterion: str, **changes) -> PruneConfig:
    return resolve(PruneConfig(criterion=criterion, temperature=TEMPERATURE, head_weight=1.0, **changes), head_width=8)


def measured(student, teacher, kind, sample, config):
    """Knowledge of all units of the student, as the loop measures it: scores at a cost of 1."""
    streams = [embed(student, batch).detach() for batch in sample.batches]
    sublayers = [s for s in find(student) if s.units]
    predictions = TeacherPredictions(teacher, kind, sample)
    criterion = CRITERIA[config.criterion]
    student.requires_grad_(False)
    found = measure(student, sublayers, [1.0] * len(sublayers), streams, predictions, criterion, config)
    return [each.scores for each in found]


def singles(batch):
    """The examples of a batch, one by one."""
    return [batch.rows(slice(row, row + 1)) for row in range(len(batch.example))]


def a_little_pruned(family="bert", kind="classification"):
    """A student that differs from its teacher in the first layer."""
    teacher, student = tiny.tiny_model(family, kind), tiny.tiny_model(family, kind)
    heads = find(student)[0]
    shrink(heads, torch.arange(heads.units) < heads.units - 1)
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
    found = measured(student, teacher, kind, sample, config_for("paper", rep_weight=0.0))
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
    fisher = measured(twin, model, kind, sample, config_for("fisher", rep_weight=0.0))
    paper = measured(twin, model, kind, sample, config_for("paper", rep_weight=0.0))
    for ours, theirs in zip(fisher, paper, strict=True):
        assert float(theirs.sum()) < 1e-6 * float(ours.sum())


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
def test_representational_knowledge_is_the_change_measured_when_the_unit_is_masked(family):
    model = tiny.tiny_model(family, "embedding")
    kind, sample = kind_of(model), tiny.sample_of(tiny.texts(16))
    twin = tiny.tiny_model(family, "embedding")
    found = measured(twin, model, kind, sample, config_for("paper", rep_weight=1.0))
    predictive = measured(twin, model, kind, sample, config_for("paper", rep_weight=0.0))
    for number, sublayer in enumerate(find(model)):
        for unit in range(0, sublayer.units, 11 if sublayer.kind == "ffn" else 1):
            mask = torch.ones(sublayer.units)
            mask[unit] = 0.0
            change = 0.0
            for batch in sample.batches:
                outputs, shape = [], batch.mask.shape
                with torch.no_grad(), on_consumer_output(sublayer, outputs.append, shape):
                    model(**batch.inputs)
                    with masked({sublayer: mask}, shape):
                        model(**batch.inputs)
                change += float((outputs[1] - outputs[0])[batch.mask].square().sum())
            ours = float(found[number][unit] - predictive[number][unit])
            assert ours == pytest.approx(change / sample.examples, rel=1e-3)


@pytest.mark.parametrize("family", tiny.SEAM_FAMILIES)
@pytest.mark.parametrize("kind_name", tiny.SEAM_KINDS)
def test_predictive_knowledge_of_other_families_is_the_mean_of_squared_gradients(family, kind_name):
    teacher, student = a_little_pruned(family, kind_name)
    kind, sample = kind_of(teacher), tiny.sample_of(tiny.texts(8))
    found = measured(student, teacher, kind, sample, config_for("paper", rep_weight=0.0))
    sublayers = [s for s in find(student) if s.units]
    expected = [torch.zeros(s.units) for s in sublayers]
    for one in (one for batch in sample.batches for one in singles(batch)):
        masks = {s: torch.ones(s.units, requires_grad=True) for s in sublayers}
        with masked(masks, one.mask.shape):
            knowledge_lost(kind, student, teacher, one).sum().backward()
        factor = 1 / (2 * TEMPERATURE**2) if kind.is_distribution else 1 / 2
        for total, sublayer in zip(expected, sublayers, strict=True):
            total += factor * masks[sublayer].grad ** 2 / 8
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.float(), theirs, rtol=2e-2, atol=1e-5 * float(theirs.max()))


def test_released_scales_follow_the_authors_recipe():
    """Batch-mean gradients of per-feature masks, squared, averaged over d_h; features per token and over d."""
    teacher, student = a_little_pruned()
    inputs = tiny.texts(3 * RELEASED_GROUP // 2)  # one group and a half
    kind, sample = kind_of(teacher), tiny.sample_of(inputs, tokens=90)
    chosen = config_for("released", rep_weight=0.5)
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
    chosen = config_for(criterion, rep_weight=1e-3)
    alone, together = (
        measured(student, teacher, kind, tiny.sample_of(inputs, tokens=tokens), chosen) for tokens in (1, 700)
    )
    # The cost of a unit that others can replace is a small difference of large sums.
    least = 1e-5 if criterion == "compensated" else 1e-6
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=least * float(one.max()))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_where_tokens_are_pooled_by_their_mean_examples_count_as_a_whole(pooling, monkeypatch):
    """The sum of an example's token gradients is the gradient of a bias, computed from each example alone."""
    model = tiny.tiny_model("bert", "embedding")
    found = {}
    removal_costs = SensitivityStatistics.removal_costs

    def keep(sums, *args, **options):
        return found.setdefault(sums, removal_costs(sums, *args, **options))

    monkeypatch.setattr(SensitivityStatistics, "removal_costs", keep)
    pruner = Pruner(model, BATCHES[:3], criterion="compensated", pooling=pooling, ridge=1e-4)
    pruner.prune(0.6)
    kind = pruner.shared.predictions.kind
    for sublayer, sums in zip(find(model), found, strict=True):
        tokens, examples = (torch.zeros(32, 32, dtype=torch.float64) for _ in range(2))
        for one in (one for batch in pruner.shared.sample.batches for one in singles(batch)):
            seen = []
            with on_output_grad([sublayer], lambda s, features, gradient: seen.append(gradient[0].double())):  # noqa: B023
                rows = kind.read(model(**one.inputs), one)
                loss = CRITERIA["compensated"].objective(kind, rows, rows.detach(), pruner.config, None)
                slope = torch.autograd.grad(loss, sublayer.consumer.bias)[0].double()
            tokens += seen[0].T @ seen[0]
            examples += torch.outer(slope, slope)
        expected = tokens + examples if pooling == "mean" else tokens
        torch.testing.assert_close(sums.directions.matrix, expected, rtol=1e-3, atol=1e-6)


def first_of(batch):
    first = torch.zeros_like(batch.mask)
    first[:, 0] = True
    return first


def test_the_refit_is_best_where_the_predictions_are_sensitive():
    """A classifier reads the first token: the top FFN is fitted to it, and to the others as far as they count."""
    model = tiny.tiny_model()
    pruner = Pruner(model, BATCHES, criterion="compensated")
    shared, config = pruner.shared, pruner.config
    batches = shared.sample.batches

    def start():
        run = Run(shared, config, budget_named("flops"))
        return run, Streams(shared.teacher, run.student, shared.sample)

    run, streams = start()
    method = KPrune(run, Journal(), lambda: None)
    method.prepare(0, streams, is_recalled=False)
    token_weights = shared.first[-1].token_weights
    is_first = torch.cat([batch.real(first_of(batch)[..., None])[:, 0] for batch in batches])
    weights = torch.cat(token_weights)
    assert (weights[~is_first] == 1.0).all()  # no other token reaches the output from there
    assert (weights[is_first] > 1.0).all()
    assert float(weights.mean()) == pytest.approx(2.0)

    def error(token_weights):
        run, streams = start()
        target = run.sublayers[-1]
        streams.advance_to(target)
        keep = torch.arange(target.units) < target.units // 8
        streams.remove(target, keep, least_squares_fit(1e-6), token_weights=token_weights)
        wrong = []
        for number, batch in enumerate(batches):
            after = advance(run.student, batch, target.index, streams.student[number], at_ffn=True)
            ours = forward(run.student, batch, start=target.index + 1, stream=after)
            wrong.append(ours.logits - shared.predictions[number].values)
        return float(torch.cat(wrong).square().mean())

    assert error(token_weights) < error(None)


@pytest.mark.parametrize("kind_name", tiny.KIND_NAMES)
def test_the_tasks_loss_takes_the_teachers_choice_where_there_are_no_labels(kind_name):
    model = tiny.tiny_model("bert", kind_name)
    kind, batch = kind_of(model), tiny.sample_of(tiny.texts(6), tokens=1000).batches[0]
    with torch.no_grad():
        rows = kind.read(model(**batch.inputs), batch)
    if not kind.is_distribution:
        with pytest.raises(KpruneError, match=f"the loss of a model for {kind_name} needs labels; pass a labelled"):
            task_loss(kind, rows, rows, None)
        return
    chosen = rows.values.argmax(-1)
    expected = -rows.weights * rows.values.log_softmax(-1)[torch.arange(len(chosen)), chosen]
    torch.testing.assert_close(task_loss(kind, rows, rows, None), expected)
    if kind_name == "classification":
        labels = torch.tensor([0, 1, 2, 0, 1, 2])
        expected = torch.nn.functional.cross_entropy(rows.values, labels, reduction="none")
        torch.testing.assert_close(task_loss(kind, rows, rows, labels), expected)


def test_labels_of_a_regression_are_values():
    model = tiny.tiny_model("bert", "regression")
    kind, batch = kind_of(model), tiny.sample_of(tiny.texts(6), tokens=1000).batches[0]
    with torch.no_grad():
        rows = kind.read(model(**batch.inputs), batch)
    labels = torch.arange(6)
    torch.testing.assert_close(task_loss(kind, rows, rows, labels), (rows.values[:, 0] - labels.float()) ** 2)


def test_only_the_gradient_criterion_wants_labels():
    assert [name for name, criterion in CRITERIA.items() if criterion.wants_labels] == ["gradient"]
    assert all(criterion.name == name for name, criterion in CRITERIA.items())
