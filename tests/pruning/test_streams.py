import copy
from functools import partial

import pytest
import tiny
import torch

from kprune.errors import KpruneError, NotSound
from kprune.models.hooks import on_consumer_output, on_features, on_residual
from kprune.models.passes import replayed
from kprune.models.resize import add_bias, columns_of
from kprune.models.sublayer import find
from kprune.pruning import memory_policy
from kprune.pruning.refit import REFIT_SLACK, keep_weights, least_squares_fit, require_bounded, require_improvement
from kprune.pruning.streams import Streams


def pair(family="bert", dtype=torch.float32):
    teacher = tiny.tiny_model(family, "embedding").to(dtype)
    sample = tiny.sample_of(tiny.texts(64), tokens=200)
    student = copy.deepcopy(teacher).requires_grad_(False)
    return teacher, student, sample, Streams(teacher, student, sample)


def seen_in(model, number, sample):
    """Stream, features and output of a sublayer over the whole sample, from plain forward passes."""
    sublayer = find(model)[number]
    seen = {"stream": [], "features": [], "output": []}
    with torch.no_grad():
        for batch in sample.batches:

            def keep(name, tensor, mask=batch.mask):
                seen[name].append(tensor[mask].double())

            with (
                on_residual(sublayer, partial(keep, "stream"), batch.mask.shape),
                on_features([sublayer], lambda s, features, keep=keep: keep("features", features), batch.mask.shape),
                on_consumer_output(sublayer, partial(keep, "output"), batch.mask.shape),
            ):
                model(**batch.inputs)
    return {name: torch.cat(values) for name, values in seen.items()}


def stored_problem(teacher, student, number, sample, keep):
    """P with a column of ones for the bias, Q, and the stream that is wanted, over the whole sample."""
    target = find(student)[number]
    theirs, ours = seen_in(teacher, number, sample), seen_in(student, number, sample)
    p = ours["features"][:, columns_of(keep, target.width)]
    wanted = theirs["stream"] + theirs["output"]
    q = wanted - ours["stream"]
    if target.consumer.bias is not None:
        p, q = torch.cat([p, torch.ones(sample.tokens, 1)], dim=1), q - target.consumer.bias
    return p, q, wanted


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-2), (torch.float64, 1e-3)])
def test_the_refit_is_lstsq_on_the_stored_full_problem(family, dtype, tolerance):
    require_lstsq(*pair(family, dtype), tolerance)


def test_an_added_bias_is_fitted_too():
    teacher, student, sample, streams = pair("llama")
    for sublayer in find(student):
        add_bias(sublayer)
    require_lstsq(teacher, student, sample, streams, 1e-2)
    assert all(sublayer.consumer.bias.any() for sublayer in find(student))


def require_lstsq(teacher, student, sample, streams, tolerance):
    """Remove units of every sublayer, and compare each refit with torch's least squares."""
    generator = torch.Generator().manual_seed(1)
    for number, target in enumerate(find(student)):  # each with the error of the sublayers below
        keep = torch.rand(target.units, generator=generator) < 0.6
        p, q, wanted = stored_problem(teacher, student, number, sample, keep)
        expected = torch.linalg.lstsq(p, q).solution
        consumer, columns = target.consumer, columns_of(keep, target.width)
        present = torch.zeros_like(expected)
        present[: len(columns)] = consumer.weight[:, columns].T
        old_bias = None if consumer.bias is None else consumer.bias.clone()

        streams.advance_to(target)
        before, after = streams.remove(target, keep, least_squares_fit(0.0))
        found = target.consumer.weight.double().T
        if old_bias is not None:
            found = torch.cat([found, (target.consumer.bias - old_bias).double()[None]])
        # Single weights depend on the condition of P; what the fit makes of P does not.
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=0.1 * tolerance)
        assert (p @ (found - expected)).norm() < 1e-5 * wanted.norm()
        scale = wanted.square().sum()
        assert after == pytest.approx(float((p @ expected - q).square().sum() / scale), rel=1e-3, abs=1e-9)
        assert before == pytest.approx(float((p @ present - q).square().sum() / scale), rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
def test_an_emptied_sublayer_is_refitted_by_its_bias(family):
    teacher, student, sample, streams = pair(family)
    target = find(student)[0]
    units = target.units
    output = seen_in(teacher, 0, sample)["output"]
    before, after = streams.remove(target, torch.zeros(units, dtype=torch.bool), least_squares_fit(0.0))
    if target.consumer.bias is not None:
        torch.testing.assert_close(target.consumer.bias.double(), output.mean(0), rtol=1e-4, atol=1e-5)
    else:
        assert before == after
    assert target.units == 0
    assert find(teacher)[0].units == units
    assert after > 0


@pytest.mark.parametrize("family", ["bert", *tiny.SEAM_FAMILIES])
def test_streams_are_those_of_plain_passes(family):
    teacher, student, sample, streams = pair(family)
    for target in find(student)[:4]:
        streams.advance_to(target)
        streams.remove(target, torch.arange(target.units) % 2 == 0, least_squares_fit(1e-6))
    streams.advance_to(find(student)[4])
    with torch.no_grad():
        for number, batch in enumerate(sample.batches):
            for model, stream in ((teacher, streams._teacher.streams[number]), (student, streams.student[number])):
                expected = model(**batch.inputs, output_hidden_states=True).hidden_states[2]
                torch.testing.assert_close(stream, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", *tiny.SEAM_FAMILIES])
def test_a_restored_sublayer_gives_the_same_streams_and_the_same_next_fit(family):
    _, first_student, _, first = pair(family)
    _, student, _, streams = pair(family)
    for number, (one, two) in enumerate(zip(find(first_student), find(student), strict=True)):
        first.advance_to(one)
        streams.advance_to(two)
        keep = torch.arange(one.units) % 3 < number % 3  # the lowest sublayer is emptied
        errors = first.remove(one, keep, least_squares_fit(1e-6))
        if number % 2:
            assert streams.remove(two, keep, least_squares_fit(1e-6)) == errors
        else:
            bias = None if one.consumer.bias is None else one.consumer.bias.clone()
            streams.restore(two, keep, one.consumer.weight.clone(), bias)
        assert torch.equal(one.consumer.weight, two.consumer.weight)
        assert all(map(torch.equal, first.student.values(), streams.student.values()))


@pytest.mark.parametrize("family", tiny.ALL_FAMILIES)
def test_features_that_were_kept_change_no_stream(family, monkeypatch):
    found = {}
    made = []
    monkeypatch.setattr(memory_policy, "replayed", lambda *args: made.append(args) or replayed(*args))
    for room in (0, 20_000, 2**27):
        monkeypatch.setattr(memory_policy, "FEATURE_BYTES", room)
        made.clear()
        _, student, sample, streams = pair(family)
        for number, target in enumerate(find(student)):
            streams.advance_to(target)
            keep = torch.arange(target.units) % 2 == 0
            streams.remove(target, keep if number != 2 else torch.zeros_like(keep), least_squares_fit(1e-6))
        found[room] = [*streams.student.values(), *(target.consumer.weight for target in find(student))]
        found[room, "made"] = len(made)
    batches = len(sample.batches)
    assert found[0, "made"] == 0 < found[20_000, "made"] < found[2**27, "made"] == 4 * batches  # one of six is emptied
    for room in (20_000, 2**27):
        assert all(map(torch.equal, found[0], found[room]))


def test_a_refit_without_a_solution_names_its_sublayer():
    teacher, student, sample, _ = pair()
    with torch.no_grad():
        find(student)[0].producers[2].weight.zero_()  # values: every head's features are one and the same
        find(student)[0].producers[2].bias.zero_()
    streams = Streams(teacher, student, sample)
    with pytest.raises(KpruneError, match="the refit of layer 0 attention has no solution with ridge 0"):
        streams.remove(find(student)[0], torch.tensor([True, True, False, False]), least_squares_fit(0.0))


def test_nothing_is_fitted_where_both_models_are_equal():
    _, student, _, streams = pair()
    before = {name: value.clone() for name, value in student.state_dict().items()}
    for target in find(student):
        streams.advance_to(target)
        assert streams.remove(target, torch.ones(target.units, dtype=torch.bool), least_squares_fit(1e-6)) == (0, 0)
    assert streams.are_equal
    assert all(torch.equal(value, before[name]) for name, value in student.state_dict().items())


def test_kept_weights_leave_the_error_as_it_is():
    _, student, _, streams = pair()
    target = find(student)[0]
    weight = target.consumer.weight[:, :16].clone()
    before, after = streams.remove(target, torch.tensor([True, True, False, False]), keep_weights)
    assert before == after > 0
    assert torch.equal(target.consumer.weight, weight)


def test_errors_that_make_no_sense_are_refused_with_their_values():
    target = find(tiny.tiny_model())[0]
    require_improvement(target, 0.5, 0.5 + REFIT_SLACK[0], ridge=0.0)
    require_improvement(target, 0.5, 0.5 + REFIT_SLACK[1], ridge=1e3)
    with pytest.raises(NotSound, match=r"refit of layer 0 attention increases .* from 0.5 to 0.6; use a smaller ridge"):
        require_improvement(target, 0.5, 0.6, ridge=1e3)
    require_bounded(target, 99.0)
    for error in (101.0, float("inf"), float("nan")):
        with pytest.raises(NotSound, match=f"diverges: after layer 0 attention its error is {error:.3g} times"):
            require_bounded(target, error)
