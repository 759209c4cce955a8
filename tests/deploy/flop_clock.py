"""A simulated clock, so that tests of times depend neither on the machine nor on its load."""

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from kprune.deploy import timing


class OperatorCounter(TorchDispatchMode):
    """Counts the operators that torch runs."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def time_by_flops(call) -> float:
    """Seconds of a call on a machine that needs 1 µs per call, 1 µs per operator and 1 ns per FLOP."""
    with OperatorCounter() as operators, FlopCounterMode(display=False) as flops:
        call()
    return 1e-6 * (1 + operators.count) + 1e-9 * flops.get_total_flops()


def install_flop_clock(monkeypatch) -> None:
    """Replace the clock of all timing, and time each call once per turn."""
    monkeypatch.setattr(timing, "_time_call", time_by_flops)
    monkeypatch.setattr(timing, "WARMUP_SECONDS", 0.0)
