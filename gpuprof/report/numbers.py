"""Formats times, shares and counts for people: two or three significant digits, a unit, separators."""

from __future__ import annotations

import math

from gpuprof.diagnosis.sentences import count as count
from gpuprof.diagnosis.sentences import duration as duration
from gpuprof.diagnosis.sentences import share as share


def percent(fraction: float) -> str:
    """`14.2 %`, where a value is compared with a limit."""
    return f"{100 * fraction:.1f} %"


def amount(value: float, noun: str) -> str:
    """`1 step`, `3 steps`, `0.5 steps`; a mean is rounded first."""
    value = round(value, 1)
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def duration_range(low_ns: float, high_ns: float) -> str:
    """`18–176 ms`; both units where they differ."""
    low, high = duration(low_ns), duration(high_ns)
    if low == high:
        return high
    number, _, unit = low.partition(" ")
    return f"{number}–{high}" if high.endswith(f" {unit}") else f"{low} – {high}"


def long_duration(ns: float) -> str:
    """`3 h 10`, `12 min`, `45 s`: how long a person waits."""
    seconds = round(ns / 1e9)
    if seconds < 60:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02}"
    hours = round(minutes / 60)
    return f"{hours // 24:,} d {hours % 24} h"


def scaled(value: float) -> str:
    """`12.6 M`, `1.1 B`, `820`: numbers of parameters."""
    for scale, unit in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if value >= scale * 0.9995:
            digits = value / scale
            return f"{digits:,.0f}{unit}" if digits >= 99.95 else f"{digits:.1f}{unit}"
    return f"{value:,.0f}"


def gib(value: float) -> str:
    """`41.2`, in GiB."""
    return f"{value / 2**30:.1f}"


def rate(value: float) -> str:
    """`1,730`, `3.4`, `0.05`: something per second."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.95 else f"{value:.2g}"


def round_ticks(top: float, most: int) -> list[float]:
    """At most `most` marks from 0 to `top`, at multiples of 1, 2 or 5 × 10ⁿ; only 0 if `top` is 0."""
    if not top > 0 or most < 2:
        return [0.0]
    least = top / (most - 1)
    power = 10.0 ** math.floor(math.log10(least))
    step = next((m * power for m in (1, 2, 5) if m * power >= least * (1 - 1e-9)), 10 * power)
    # From whole numbers, so that 3 × 0.1 is 0.3.
    return [float(f"{k * step:.12g}") for k in range(math.floor(top / step * (1 + 1e-9)) + 1)]


def joules(value: float) -> str:
    """`48 J`, `24 mJ`, `1.2 kJ`."""
    size = abs(value)
    number, unit = (value / 1e3, "kJ") if size >= 1e3 else (value, "J") if size >= 1 else (value * 1e3, "mJ")
    return f"{number:,.0f} {unit}" if abs(number) >= 10 else f"{number:,.2g} {unit}"
