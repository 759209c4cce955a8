import pytest
import tiny
import torch
from torch.utils.flop_counter import FlopCounterMode

from kprune.measure import References, measure
from kprune.outputs import kind_of
from kprune.prune import Pruner
from kprune.sample import Sample
from kprune.streams import Streams
from kprune.sublayer import find, shrink

FROM_FIRST_TOKENS = ("classification", "multi-label classification", "regression")


def references_of(model, *, pooling="mean"):
    return References(model, kind_of(model, pooling=pooling), tiny.sample_of(tiny.texts()))


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
@pytest.mark.parametrize("kind", tiny.KIND_NAMES)
def test_heads_that_read_first_tokens_alone_are_told_from_others(family, kind):
    assert references_of(tiny.tiny_model(family, kind)).are_of_first_tokens == (kind in FROM_FIRST_TOKENS)


@pytest.mark.parametrize(("pooling", "expected"), [("mean", False), ("max", False), ("cls", True)])
def test_poolings_that_read_first_tokens_alone_are_told_from_others(pooling, expected):
    assert references_of(tiny.tiny_model("bert", "embedding"), pooling=pooling).are_of_first_tokens is expected


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
def test_predictions_that_are_asked_for_equal_noted_ones_bit_for_bit(family):
    teacher = tiny.tiny_model(family).requires_grad_(False)
    batches = [*tiny.sample_of(tiny.texts()).batches, tiny.sample_of([torch.tensor([7])]).batches[0]]
    sample = Sample(batches, sum(len(batch.example) for batch in batches), sum(b.real_tokens for b in batches))
    asked, noted = (References(teacher, kind_of(teacher), sample) for _ in range(2))
    settings = Pruner(teacher, tiny.batched(tiny.texts(512)), criterion="fisher").settings
    streams = Streams(teacher, teacher, sample)
    sublayers = find(teacher)
    measure(teacher, sublayers, [1.0] * len(sublayers), streams.student, noted, settings, is_teacher=True)
    for number in range(len(batches)):
        assert torch.equal(asked[number].values, noted[number].values)


def test_a_failing_measurement_leaves_no_hook_behind(monkeypatch):
    teacher = tiny.tiny_model("distilbert").requires_grad_(False)
    references = references_of(teacher)
    settings = Pruner(teacher, tiny.batched(tiny.texts(512)), criterion="fisher").settings
    streams = Streams(teacher, teacher, references.sample)
    monkeypatch.setattr(teacher.base_model.transformer.layer[-1].ffn.activation, "forward", lambda tensor: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measure(teacher, find(teacher), [1.0] * 6, streams.student, references, settings)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in teacher.modules())


@pytest.mark.parametrize(
    ("family", "criterion"),
    [*((name, "fisher") for name in tiny.FAMILY_NAMES), ("bert", "compensated"), ("distilbert", "compensated")],
)
@pytest.mark.parametrize(("lowest", "emptied"), [(0, None), (4, None), (5, None), (0, 4), (0, 5)])
def test_what_is_spared_changes_no_knowledge(family, criterion, lowest, emptied):
    teacher = tiny.tiny_model(family).requires_grad_(False)
    student = tiny.tiny_model(family).requires_grad_(False)
    bottom = find(student)[1]
    shrink(bottom, torch.arange(bottom.units) % 3 > 0)
    if emptied:
        shrink(find(student)[emptied], torch.zeros(find(student)[emptied].units, dtype=torch.bool))
    settings = Pruner(teacher, tiny.batched(tiny.texts(512)), criterion=criterion).settings
    scores, flops = {}, {}
    for is_spared in (True, False):
        references = references_of(teacher)
        assert references.are_of_first_tokens
        references.__dict__["are_of_first_tokens"] = is_spared
        sublayers = [sublayer for sublayer in find(student)[lowest:] if sublayer.units]
        streams = Streams(teacher, student, references.sample, are_equal=False)
        streams.move_to(sublayers[0])
        with FlopCounterMode(display=False) as counter:
            found = measure(student, sublayers, [1.0] * len(sublayers), streams.student, references, settings)
        scores[is_spared] = [each.scores for each in found]
        flops[is_spared] = counter.get_total_flops()
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in student.modules())
    assert flops[True] < flops[False]
    for spared, full in zip(scores[True], scores[False], strict=True):
        assert bool(full.any())
        torch.testing.assert_close(spared, full, rtol=1e-4, atol=1e-6 * float(full.max()))
