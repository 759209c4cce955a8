import copy

import pytest
import tiny
import torch

from kprune import streams as streams_module
from kprune.errors import KpruneError
from kprune.observe import replayed
from kprune.streams import Streams, best_fit
from kprune.sublayer import columns_of, find


def pair(family="bert"):
    teacher = tiny.tiny_model(family, "embedding")
    sample = tiny.sample_of(tiny.texts(64), tokens=200)
    student = copy.deepcopy(teacher).requires_grad_(False)
    return teacher, student, sample, Streams(teacher, student, sample)


def seen_in(model, number, sample):
    """Stream, features and output of a sublayer over the whole sample, from plain forward passes."""
    sublayer = find(model)[number]
    seen = {"stream": [], "features": [], "output": []}
    batch = {}

    def keep(name):
        return lambda tensor: seen[name].append(tensor[batch["mask"]].double())

    handles = [
        sublayer.stream_reader.register_forward_pre_hook(lambda m, args: keep("stream")(args[0])),
        sublayer.consumer.register_forward_pre_hook(lambda m, args: keep("features")(args[0])),
        sublayer.consumer.register_forward_hook(lambda m, args, out: keep("output")(out)),
    ]
    with torch.no_grad():
        for b in sample.batches:
            batch["mask"] = b.mask
            model(**b.inputs)
    for handle in handles:
        handle.remove()
    return {name: torch.cat(values) for name, values in seen.items()}


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 5])
def test_the_refit_is_lstsq_on_the_stored_full_problem(family, number):
    teacher, student, sample, streams = pair(family)
    generator = torch.Generator().manual_seed(number)
    for target in find(student)[:number]:  # some error below the sublayer at hand
        streams.move_to(target)
        streams.remove(target, torch.rand(target.units, generator=generator) < 0.7, best_fit(0.0))
    target = find(student)[number]
    keep = torch.rand(target.units, generator=generator) < 0.6
    columns = columns_of(keep, target.width)
    theirs, ours = seen_in(teacher, number, sample), seen_in(student, number, sample)
    p = torch.cat([ours["features"][:, columns], torch.ones(sample.tokens, 1)], dim=1)
    wanted = theirs["stream"] + theirs["output"]
    q = wanted - ours["stream"] - target.consumer.bias
    expected = torch.linalg.lstsq(p, q).solution
    old_bias = target.consumer.bias.clone()
    old_weight = target.consumer.weight[:, columns].double()

    streams.move_to(target)
    before, after = streams.remove(target, keep, best_fit(0.0))
    torch.testing.assert_close(target.consumer.weight.double(), expected[:-1].T, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(target.consumer.bias - old_bias, expected[-1].float(), rtol=1e-3, atol=1e-4)
    scale = wanted.square().sum()
    assert after == pytest.approx(float((p @ expected - q).square().sum() / scale), rel=1e-3, abs=1e-9)
    assert before == pytest.approx(float((p[:, :-1] @ old_weight.T - q).square().sum() / scale), rel=1e-3)


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
def test_an_emptied_sublayer_is_refitted_by_its_bias(family):
    teacher, student, sample, streams = pair(family)
    target = find(student)[0]
    original = find(teacher)[0]
    output = seen_in(teacher, 0, sample)["output"]
    _, after = streams.remove(target, torch.zeros(4, dtype=torch.bool), best_fit(0.0))
    torch.testing.assert_close(target.consumer.bias.double(), output.mean(0), rtol=1e-4, atol=1e-5)
    assert target.units == 0
    assert original.units == 4
    assert after > 0


def test_streams_are_those_of_plain_passes():
    teacher, student, sample, streams = pair()
    for target in find(student)[:4]:
        streams.move_to(target)
        streams.remove(target, torch.arange(target.units) % 2 == 0, best_fit(1e-6))
    streams.move_to(find(student)[4])
    with torch.no_grad():
        for number, batch in enumerate(sample.batches):
            for model, stream in ((teacher, streams._teacher[number]), (student, streams.student[number])):
                expected = model(**batch.inputs, output_hidden_states=True).hidden_states[2]
                torch.testing.assert_close(stream, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
def test_features_that_were_kept_change_no_stream(family, monkeypatch):
    found = {}
    made = []
    monkeypatch.setattr(streams_module, "replayed", lambda *args: made.append(args) or replayed(*args))
    for room in (0, 20_000, 2**27):
        monkeypatch.setattr(streams_module, "FEATURE_BYTES", room)
        made.clear()
        _, student, sample, streams = pair(family)
        for number, target in enumerate(find(student)):
            streams.move_to(target)
            keep = torch.arange(target.units) % 2 == 0
            streams.remove(target, keep if number != 2 else torch.zeros_like(keep), best_fit(1e-6))
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
        streams.remove(find(student)[0], torch.tensor([True, True, False, False]), best_fit(0.0))
