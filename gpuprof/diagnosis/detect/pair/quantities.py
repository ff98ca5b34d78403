"""How much there is of something in A and in B: whether it fell, and how one says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuprof.diagnosis.detect.pair.facts import Facts

HALF = 0.5
"""What falls to less than this of what it was is as good as gone."""
FEWER = 0.75
"""A fix that leaves part of its work behind (casts that a model needs anyway) leaves at most this much."""
FEW = 8.0
"""Kernels or calls a step that are too few to be a habit."""
PACE = 0.05
"""Launches, kernels and clocks that differ by less are the same; work likewise."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """An amount in A and in B, a step. As text `3,200 → 90`."""

    a: float
    b: float

    def __str__(self) -> str:
        return f"{number(self.a)} → {number(self.b)}"

    @property
    def ms(self) -> str:
        """Of nanoseconds, in milliseconds: `12 → 0.3`, `0 → 379`."""
        a, b = (f"{ns / 1e6:,.{0 if not ns or ns >= 9.95e6 else 1}f}" for ns in (self.a, self.b))
        return f"{a} → {b}"

    @property
    def more(self) -> int:
        """1 where B has more of it, −1 where it has less."""
        return (self.b > self.a) - (self.b < self.a)

    @property
    def difference(self) -> float:
        """By how much they differ."""
        return abs(self.b - self.a)

    @property
    def largest(self) -> float:
        return max(self.a, self.b)

    @property
    def steady(self) -> bool:
        """Whether they differ by no more than two runs of one program do."""
        return self.difference <= PACE * self.a

    def fell(self, to: float = HALF, least: float = FEW) -> bool:
        """Whether the smaller is at most the share `to` of the larger, and the larger worth mention."""
        return self.largest >= least and min(self.a, self.b) <= to * self.largest


def times(ratio: float) -> str:
    """`1.4`, `0.25`, `128`: two digits at least."""
    return f"{ratio:,.0f}" if ratio >= 9.95 else f"{ratio:.2g}"


def number(value: float) -> str:
    """A count, or the mean of counts."""
    return f"{value:,.0f}" if value >= 10 or float(value).is_integer() else f"{value:,.1f}"


def quantity(a: Facts, b: Facts, amount: Callable[[Facts], float]) -> Quantity:
    """An amount of both."""
    return Quantity(amount(a), amount(b))


def kernel_counts(a: Facts, b: Facts, categories: tuple[str, ...] = (), phases: tuple[str, ...] = ()) -> Quantity:
    """Kernels and copies of some categories and phases; none named means all."""
    return quantity(a, b, lambda side: side.counts.count(categories, phases))


def kernel_ns(a: Facts, b: Facts, categories: tuple[str, ...] = (), phases: tuple[str, ...] = ()) -> Quantity:
    """Their summed durations, as recorded."""
    return quantity(a, b, lambda side: side.counts.ns(categories, phases))


def idle_ns(a: Facts, b: Facts, *causes: str) -> Quantity:
    """Nanoseconds of the steps in which the GPU waits for some causes."""
    return quantity(
        a, b, lambda side: sum(ns for cell, ns in side.cells.items() if cell[0] == "idle" and cell[1] in causes)
    )
