"""Calls are timed in turns, on a simulated clock."""

import itertools
from statistics import median

import pytest
import tiny
import torch

from kprune import KpruneError
from kprune.deploy import timing
from kprune.deploy.timing import Times, random_inputs, time_interleaved


class Clock:
    """A clock that only `sleep` advances."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "perf_counter", clock)
    return clock


def test_calls_take_turns_and_ratios_are_of_the_same_round(clock):
    order = []
    calls = {name: (lambda name=name: (order.append(name), clock.sleep(0.021))) for name in "abc"}
    times = time_interleaved(calls, seconds=0.0, min_rounds=3)
    # After the warm-up, each round starts with the next call.
    assert "".join(name for name, _ in itertools.groupby(order)) == "abc" + "abc" + "bca" + "cab"
    assert all(len(taken.rounds) == 3 for taken in times.values())
    assert times["a"].all == pytest.approx([0.021] * len(times["a"].all))


def test_rounds_end_when_the_time_is_over(clock):
    calls = {name: lambda: clock.sleep(0.2) for name in "ab"}  # two calls per turn: one untimed, one timed
    assert len(time_interleaved(calls, seconds=3.9)["a"].rounds) == 10
    assert len(time_interleaved(calls, seconds=0.0)["a"].rounds) == 5
    assert len(time_interleaved(calls, seconds=1e9, max_rounds=7)["a"].rounds) == 7


def test_short_calls_are_timed_several_times_in_a_turn(clock):
    times = time_interleaved({"short": lambda: clock.sleep(0.03)}, seconds=0.0, min_rounds=2)["short"]
    assert [len(taken) for taken in times.rounds] == [3, 3]
    times = time_interleaved({"shortest": lambda: clock.sleep(0.001)}, seconds=0.0, min_rounds=2)["shortest"]
    assert [len(taken) for taken in times.rounds] == [10, 10]


def test_what_another_call_leaves_behind_is_not_timed(clock):
    """Threads of ONNX Runtime wait actively for about 50 ms after a call, and slow down the next model."""
    ended = [0.0]

    def busy():
        clock.sleep(0.005)
        ended[0] = clock.now

    def quiet():
        clock.sleep(0.015 if clock.now - ended[0] < 0.06 else 0.003)

    times = time_interleaved({"busy": busy, "quiet": quiet}, seconds=0.0, min_rounds=3)
    assert all(median(taken) == pytest.approx(0.003) for taken in times["quiet"].rounds)


def test_a_slow_spell_does_not_change_the_ratio():
    busy = (1.0, 9.0, 9.0)
    ours = Times(tuple((2.0 * each,) for each in busy))
    theirs = Times(tuple((each,) for each in busy))
    assert ours.ratio(theirs) == 2.0
    # Load affects two rounds of one and three of the other: the medians differ by 9, the rounds' ratios do not.
    ours, theirs = (Times(tuple((each,) for each in rounds)) for rounds in ((9, 9, 9, 1, 1), (9, 9, 1, 1, 1)))
    assert ours.p50 / theirs.p50 == 9.0
    assert ours.ratio(theirs) == 1.0
    assert Times(((4.0,), (1.0, 2.0))).p50 == 2.0
    assert Times(((5.0,),)).ratio(Times(((3.0,),)), without=1.0) == 2.0
    assert Times((tuple(range(1, 101)),)).p95 == 95


def test_random_inputs_have_no_padding():
    config = tiny.tiny_config("roberta")
    inputs = random_inputs(config, 3, 7, torch.device("cpu"))
    assert inputs["input_ids"].shape == (3, 7)
    assert not (inputs["input_ids"] == config.pad_token_id).any()
    assert inputs["attention_mask"].all()


def test_inputs_longer_than_the_model_reads_are_refused():
    with pytest.raises(KpruneError, match="inputs of 2 × 500 tokens are too long for the model; it reads at most 66"):
        random_inputs(tiny.tiny_config("bert"), 2, 500, torch.device("cpu"))
