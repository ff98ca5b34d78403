"""Helpers for the sentences of a diagnosis: capitals, lists, and times."""

from __future__ import annotations

from collections.abc import Sequence

Sentences = tuple[str, ...]
"""Sentences, the most important first, so that a caller can take fewer."""

SHORT_NS = 99_500
"""Times below this are given in microseconds with two digits."""


def capital(text: str) -> str:
    """The text with a capital first letter; the rest unchanged."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str]) -> str:
    """`compute, memory and latency`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""


def gpu_named(number: int, of: int) -> str:
    """`GPU 1` if there are several, otherwise `GPU`."""
    return f"GPU {number}" if of > 1 else "GPU"


def in_ms(ns: float) -> str:
    """A time with three digits: `0.42 ms`, `15.9 ms`, `1.17 s`; short ones in microseconds: `2.3 µs`."""
    if 0 < ns < SHORT_NS:
        return f"{ns / 1e3:.2g} µs"
    if ns >= 1e9:
        return _in_s(ns)
    ms = ns / 1e6
    return f"{ms:.3g} ms" if ms < 100 else f"{ms:,.0f} ms"


def ms_or_us(ns: float) -> str:
    """A time with one decimal from 1 ms on: `15.9 ms`, two from 1 s on: `1.17 s`; below in whole microseconds: `420
    µs`."""
    if ns >= 1e9:
        return _in_s(ns)
    return f"{ns / 1e6:,.1f} ms" if ns >= 1e6 else f"{ns / 1e3:,.0f} µs"


def _in_s(ns: float) -> str:
    return f"{ns / 1e9:,.2f} s"


def size_in_ms(ns: float) -> str:
    """Milliseconds without sign and unit, for a sentence that gives both: `0.42`, `15.9`, `1,170`."""
    value = abs(ns) / 1e6
    return f"{value:,.0f}" if value >= 99.95 else f"{value:,.1f}" if value >= 0.95 else f"{value:.2g}"
