"""Numbers as a reader wants them."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, log10
from typing import Any

MINUS, TO = "\u2212", "\u2013"
FINE = ("divergence", "squared-error")
"""Figures that are small numbers, not percentages."""


def plain(value: float, digits: int = 2) -> str:
    """A number with thousands separators and a proper minus; never a negative zero."""
    rounded = round(value, digits) + 0.0
    return f"{rounded:,.{digits}f}".replace("-", MINUS)


def signed(value: float, digits: int = 2) -> str:
    """The same with its sign."""
    rounded = round(value, digits) + 0.0
    return f"{rounded:+,.{digits}f}".replace("-", MINUS)


def percent(share: float, digits: int = 0) -> str:
    return f"{plain(100 * share, digits)} %"


def digits_of(name: str) -> int:
    """Digits after the point of a figure."""
    return 4 if name in FINE else 2


def interval(low: float, high: float, digits: int = 2, *, with_sign: bool = False) -> str:
    """The ends of an interval."""
    written = signed if with_sign else plain
    return f"{written(low, digits)} to {written(high, digits)}"


def with_interval(figure: Mapping[str, Any], *, with_sign: bool = False) -> str:
    """A figure's value and its interval."""
    digits = digits_of(figure["name"])
    written = signed if with_sign else plain
    ends = interval(figure["low"], figure["high"], digits, with_sign=with_sign)
    return f"{written(figure['value'], digits)} ({ends})"


def scaled(value: float) -> str:
    """A large count with its unit: 1.31 G, 22.7 M."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            digits = 2 if abs(value) < 10 * size else 1
            return f"{plain(value / size, digits)} {unit}"
    return plain(value, 0)


def capital(name: str) -> str:
    """A name at the start of a sentence."""
    return name[:1].upper() + name[1:]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that span a range: 1, 2 or 5 times a power of ten apart."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / count
    power = 10.0 ** _floor_log10(raw)
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= raw * 0.999)
    first, last = _floor(low / step), -_floor(-high / step)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _floor_log10(value: float) -> int:
    return floor(log10(value))


def _floor(value: float) -> int:
    return floor(value + 1e-9)


def tick_label(value: float) -> str:
    """A tick's number without useless digits."""
    written = f"{value:,.6f}".rstrip("0").rstrip(".")
    return written.replace("-", MINUS)
