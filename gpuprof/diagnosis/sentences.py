"""How the sentences of a diagnosis begin, and how times, counts and shares look in them and everywhere else."""

from __future__ import annotations

from collections.abc import Sequence

from gpuprof.units import Bytes, Convention

Sentences = tuple[str, ...]
"""Sentences, the most important first, so that a caller can take fewer."""
GIB: Convention[Bytes] = 1 << 30
_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))


def capital(text: str) -> str:
    """The text with a capital first letter; the rest unchanged."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str]) -> str:
    """`compute, memory and latency`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""


def gpu_named(number: int, of: int) -> str:
    """`GPU 1` if there are several, otherwise `GPU`."""
    return f"GPU {number}" if of > 1 else "GPU"


def duration(ns: float) -> str:
    """`1.2 ms`, `41 ms`, `168 ms`: two or three digits, in the largest unit that is not above the value."""
    if ns < 0:
        return f"−{duration(-ns)}"
    if ns == 0:
        return "0 ms"
    for scale, unit in _UNITS:
        # 999.7 µs rounds to 1.0 ms, never to 1,000 µs.
        if ns >= scale * 0.9995 or scale == 1:
            return f"{_digits(ns / scale, whole=scale == 1)} {unit}"
    raise AssertionError


def _digits(value: float, whole: bool) -> str:
    return f"{value:,.0f}" if whole or value >= 9.95 else f"{value:.1f}"


def count(value: float) -> str:
    """`5,276`; a mean below ten keeps one decimal."""
    return f"{value:,.0f}" if value >= 10 or float(value).is_integer() else f"{value:,.1f}"


def share(part: float, total: float) -> str:
    """`14 %`; shares that would round to 0 or 100 % are shown as `<1 %` or `>99 %`."""
    if total <= 0:
        return "–"
    percent = 100 * part / total
    if 0 < percent < 0.5:
        return "<1 %"
    if 99.5 <= percent < 100:
        return ">99 %"
    return f"{percent:.0f} %"
