"""How the sentences of a diagnosis begin, and how times look in them."""

from __future__ import annotations

from collections.abc import Sequence

from gpuprof.units import Convention, WholeNs

Sentences = tuple[str, ...]
"""What is said, sentence by sentence: who needs fewer of them takes the first."""

SHORT_NS: Convention[WholeNs] = 99_500
"""Shorter times are given in microseconds, with two digits: longer ones would be rounded to three."""


def capital(text: str) -> str:
    """The text with a capital first letter; the rest stays as it is."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str]) -> str:
    """`compute, memory and latency`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""


def gpu_named(number: int, of: int) -> str:
    """`GPU 1` of several; one alone needs no number: `GPU`."""
    return f"GPU {number}" if of > 1 else "GPU"


def in_ms(ns: float) -> str:
    """Three digits: `0.42 ms`, `15.9 ms`, `1.17 s`; what is far below a millisecond in microseconds: `2.3 µs`."""
    if 0 < ns < SHORT_NS:
        return f"{ns / 1e3:.2g} µs"
    if ns >= 1e9:
        return _in_s(ns)
    ms = ns / 1e6
    return f"{ms:.3g} ms" if ms < 100 else f"{ms:,.0f} ms"


def ms_or_us(ns: float) -> str:
    """One decimal, from 1 ms on: `15.9 ms`, and from 1 s on two: `1.17 s`; below whole microseconds: `420 µs`."""
    if ns >= 1e9:
        return _in_s(ns)
    return f"{ns / 1e6:,.1f} ms" if ns >= 1e6 else f"{ns / 1e3:,.0f} µs"


def _in_s(ns: float) -> str:
    return f"{ns / 1e9:,.2f} s"


def size_in_ms(ns: float) -> str:
    """Milliseconds without sign and unit, for a sentence that says both: `0.42`, `15.9`, `1,170`."""
    value = abs(ns) / 1e6
    return f"{value:,.0f}" if value >= 99.95 else f"{value:,.1f}" if value >= 0.95 else f"{value:.2g}"
