"""Numbers as they stand in the sentences of a diagnosis."""

from __future__ import annotations


def in_ms(ns: float) -> str:
    """`15.9 ms`, `117 ms`."""
    ms = ns / 1e6
    return f"{ms:.3g} ms" if ms < 100 else f"{ms:,.0f} ms"
