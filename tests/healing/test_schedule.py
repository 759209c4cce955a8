"""Which batch is next, at which rate, and when the held-out text judges."""

import pytest

from kprune import HealConfig
from kprune.healing.schedule import PASSES_PER_PART, RATE, RATE_OF_EMBEDDINGS, Schedule, with_rate


def test_passes_read_every_batch_of_their_part_once_and_parts_take_turns():
    schedule = Schedule(HealConfig(heal="9.5x"), [3, 4])
    places = schedule.places(0)
    steps = [next(places) for _ in range(schedule.steps)]
    passes = [3] * PASSES_PER_PART + [4] * PASSES_PER_PART + [3, 2]
    assert schedule.steps == sum(passes)
    for number, size in enumerate(passes):
        part, whole = number // PASSES_PER_PART % 2, (3, 4)[number // PASSES_PER_PART % 2]
        read, steps = steps[:size], steps[size:]
        assert len(set(read)) == size
        assert set(read) <= {(part, batch) for batch in range(whole)}


def test_a_later_start_continues_the_same_order():
    schedule = Schedule(HealConfig(heal="6x", seed=3), [5, 2])
    places = schedule.places(0)
    steps = [next(places) for _ in range(26)]
    for first in range(24):
        later = schedule.places(first)
        assert [next(later) for _ in range(26 - first)] == steps[first:]


def test_the_rate_rises_to_its_peak_and_falls_to_zero():
    schedule = Schedule(HealConfig(heal="1x", heal_rate=0.2), [100])
    rates = [schedule.rate(step / 100) for step in range(101)]
    assert rates[0] == 0.0
    assert max(rates) == pytest.approx(0.2) == rates[5]
    assert rates[:6] == sorted(rates[:6])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)


def test_half_a_pass_and_minutes():
    assert Schedule(HealConfig(heal="0.5x"), [9]).steps == 5
    schedule = Schedule(HealConfig(heal="2m"), [9])
    assert schedule.steps is None
    assert schedule.fraction(1000, 30.0) == 0.25
    assert Schedule(HealConfig(heal="0m"), [9]).fraction(0, 0.0) == 1.0


def test_the_held_out_text_judges_at_equal_distances_and_at_the_end():
    schedule = Schedule(HealConfig(heal="1x"), [16])
    judged = [step for step in range(1, 17) if schedule.is_judged((step - 1) / 16, step / 16)]
    assert judged == [2, 4, 6, 8, 10, 12, 14, 16]


@pytest.mark.parametrize("is_embedding", [False, True])
def test_a_rate_that_is_named_stays(is_embedding):
    assert with_rate(HealConfig(heal_rate=3e-4), is_embedding=is_embedding).heal_rate == 3e-4
    assert with_rate(HealConfig(), is_embedding=is_embedding).heal_rate == (
        RATE_OF_EMBEDDINGS if is_embedding else RATE
    )
