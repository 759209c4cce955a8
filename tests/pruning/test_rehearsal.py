"""The rehearsal runs the real parts on every family, changes nothing and grows as the run does."""

import pytest
import tiny
import torch
import zoo

from kprune import PruneConfig, Pruner
from kprune.errors import BadOptions
from kprune.maths.least_squares import HalvedLeastSquares
from kprune.pruning.forecast import forecast
from kprune.pruning.rehearsal import rehearse

CONFIG = PruneConfig(reduction=0.6, align=1)


def rehearsed(model, batches, **changes):
    pruner = Pruner(model, batches, CONFIG, **changes)
    return pruner, *rehearse(pruner)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("bert", "classification"),
        ("llama", "causal language model"),
        ("modernbert", "embedding"),
    ],
)
def test_every_part_takes_time(family, kind):
    model = zoo.build(family, kind)
    _, rehearsal, extent = rehearsed(model, tiny.batched(tiny.texts(80)))
    seconds = [rehearsal.embedding, rehearsal.measuring, rehearsal.scoring, rehearsal.refitting, rehearsal.solving]
    assert min(seconds) > 0.0
    assert 0 < rehearsal.tokens <= rehearsal.held_tokens
    assert extent.tokens >= sum(len(text) for text in tiny.texts(80)) - 80
    assert extent.width == model.config.hidden_size
    assert rehearsal.measuring_bytes > 0


def test_the_model_and_the_later_run_are_not_changed():
    model, batches = tiny.tiny_model(), tiny.batched(tiny.texts(80))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pruner, *_ = rehearsed(model, batches)
    after, expected = pruner.prune(), Pruner(model, batches, CONFIG).prune()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [step.kept for step in after.steps] == [step.kept for step in expected.steps]
    assert all(torch.equal(a, b) for a, b in zip(after.model.parameters(), expected.model.parameters(), strict=True))


def test_criteria_that_measure_often_are_planned_so():
    _, rehearsal, once = rehearsed(tiny.tiny_model(), tiny.batched(tiny.texts(80)))
    _, _, often = rehearsed(tiny.tiny_model(), tiny.batched(tiny.texts(80)), criterion="fisher")
    assert (sum(once.is_measured), all(often.is_measured)) == (1, True)
    assert forecast(rehearsal, often).seconds > forecast(rehearsal, once).seconds


def test_a_sample_of_one_batch_is_its_own_rehearsal():
    _, rehearsal, extent = rehearsed(tiny.tiny_model(), tiny.batched(tiny.texts(12, shortest=20)), ridge=1e-3)
    assert rehearsal.tokens <= extent.tokens


def test_the_refits_are_those_of_the_run(monkeypatch):
    """Cross-validation solves several systems, so a plain refit would be much faster than the run's."""
    ridges = []
    whole = HalvedLeastSquares.cross_validated
    monkeypatch.setattr(
        HalvedLeastSquares, "cross_validated", lambda *args, **options: ridges.append(1) or whole(*args, **options)
    )
    rehearsed(tiny.tiny_model(), tiny.batched(tiny.texts(80)))
    assert len(ridges) == 2  # a sublayer of each kind
    rehearsed(tiny.tiny_model(), tiny.batched(tiny.texts(80)), ridge=1e-3)
    assert len(ridges) == 2


def test_rivals_are_refused():
    pruner = Pruner(tiny.tiny_model(), tiny.batched(tiny.texts(80)), method="magnitude")
    with pytest.raises(BadOptions, match="rehearses the method 'kprune', not 'magnitude'; leave --method out"):
        rehearse(pruner)
