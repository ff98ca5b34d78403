"""How prose quotes numbers of the table: pages of findings and documents are filled from it when they are written."""

from __future__ import annotations


def percent(share: float) -> str:
    """`0.35` → `35`, `0.125` → `12.5`."""
    return f"{100 * share:.3g}"


def more(ratio: float) -> str:
    """`1.2` → `20`: percent above 1."""
    return percent(ratio - 1)


def less(ratio: float) -> str:
    """`0.95` → `5`: percent below 1."""
    return percent(1 - ratio)


def us(ns: float) -> str:
    """`1_300` → `1.3`: nanoseconds in microseconds."""
    return f"{ns / 1e3:g}"


def ms(ns: float) -> str:
    """`200_000` → `0.2`: nanoseconds in milliseconds."""
    return f"{ns / 1e6:g}"


def plain(value: float) -> str:
    """`1_022.0` → `1,022`: as it stands, with commas between thousands."""
    return f"{value:,g}" if abs(value) < 1e6 else f"{value:,.0f}"
