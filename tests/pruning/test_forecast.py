"""The formula of time and memory: it is linear where it says so, and never falls as the work grows."""

from dataclasses import replace

import pytest

from kprune.pruning.forecast import Extent, Rehearsal, forecast, measurements, removed_range
from kprune.pruning.memory_policy import FEATURE_BYTES

REHEARSAL = Rehearsal(
    tokens=1000,
    held_tokens=1500,
    embedding=0.1,
    measuring=2.0,
    scoring=3.0,
    refitting=1.5,
    solving=0.5,
    loading_bytes=300e6,
    measuring_bytes=500e6,
    refitting_bytes=480e6,
)
ONCE = (True, *[False] * 11)
EXTENT = Extent(tokens=20_000, width=384, sublayers=12, features=600, is_measured=ONCE)


def test_the_formula_by_hand():
    found = forecast(REHEARSAL, EXTENT)
    assert found.seconds == pytest.approx(20 * (0.1 + 2.0 + 1.5) + 3.0 + 0.5)
    assert found.measuring_seconds + found.refitting_seconds == pytest.approx(found.seconds)
    more = 20_000 - 1500
    measuring = 500e6 + 4 * more * (384 + 12)
    refitting = 480e6 + 4 * more * (3 * 384 + 12) + 4 * 600 * more
    assert found.megabytes == pytest.approx(max(measuring, refitting) / 2**20)


def test_the_rehearsal_of_everything_is_the_run():
    whole = forecast(REHEARSAL, replace(EXTENT, tokens=1000))
    assert whole.seconds == pytest.approx(0.1 + 2.0 + 3.0 + 1.5 + 0.5)
    assert whole.megabytes == pytest.approx(500e6 / 2**20)


@pytest.mark.parametrize("field", ["tokens", "width", "sublayers"])
def test_more_work_is_never_cheaper(field):
    sizes = [getattr(EXTENT, field) * factor for factor in (1, 2, 3, 50)]
    found = [forecast(REHEARSAL, replace(EXTENT, **{field: size})) for size in sizes]
    assert [each.seconds for each in found] == sorted(each.seconds for each in found)
    assert [each.megabytes for each in found] == sorted(each.megabytes for each in found)
    by_time = forecast(replace(REHEARSAL, measuring=5.0), EXTENT)
    assert by_time.seconds > found[0].seconds


def test_measuring_at_every_sublayer_passes_through_what_is_above():
    assert measurements(ONCE) == 1.0
    assert measurements([True] * 12) == pytest.approx(6.5)
    assert measurements([False] * 12) == 0.0
    often = forecast(REHEARSAL, replace(EXTENT, is_measured=[True] * 12))
    once = forecast(REHEARSAL, EXTENT)
    assert often.measuring_seconds == pytest.approx(6.5 * once.measuring_seconds)
    assert often.refitting_seconds == once.refitting_seconds
    assert often.megabytes >= once.megabytes


def test_streams_on_a_disk_need_no_memory_and_features_are_limited():
    large = replace(EXTENT, tokens=10**6)
    kept, moved = (forecast(REHEARSAL, replace(large, keeps_streams=keeps)).megabytes for keeps in (True, False))
    assert kept - moved == pytest.approx(4 * 3 * 384 * (10**6 - 1500) / 2**20, rel=0.05)
    wide = [forecast(REHEARSAL, replace(large, features=features)).megabytes for features in (600, 60_000)]
    assert wide[1] - wide[0] <= FEATURE_BYTES / 2**20


def test_the_range_of_what_leaves_has_both_extremes():
    kinds = [(100.0, 50.0), (300.0, 300.0)]  # half an amount per price, and one
    assert removed_range(kinds, 0.0) == (0.0, 0.0)
    assert removed_range(kinds, 200.0) == pytest.approx((50.0 + 100.0, 200.0))
    assert removed_range(kinds, 400.0) == pytest.approx((350.0, 350.0))
    assert removed_range([(100.0, 20.0)] * 3, 150.0) == pytest.approx((30.0, 30.0))
