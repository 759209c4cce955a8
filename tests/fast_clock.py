"""The simulated clock of tests/deploy with one round per measurement: all rounds are equal."""

from deploy.flop_clock import install_flop_clock

from kprune.deploy import benchmark, latency
from kprune.deploy.timing import time_interleaved
from kprune.jobs import sweep


def install_fast_clock(monkeypatch) -> None:
    """Replace the clock of all timing."""
    install_flop_clock(monkeypatch)
    for module in (benchmark, latency, sweep):
        monkeypatch.setattr(
            module, "time_interleaved", lambda calls, **_: time_interleaved(calls, seconds=0.0, min_rounds=1)
        )
