"""An amount in A and in B: how it changed, and how it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuprof.diagnosis.sentences import count
from gpuprof.units import Assumed, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.detect.pair.facts import Facts

AS_GOOD_AS_GONE: Assumed[Share] = 0.5
"""An amount that falls below this share of its former value counts as gone."""
MOST_WORK_LEFT: Assumed[Share] = 0.75
"""A fix that leaves part of the work (casts that a model needs anyway) leaves at most this share."""
FEWEST_A_STEP: Assumed[Ratio] = 8.0
"""Fewest kernels or calls per step that count as a pattern."""
SAME_PACE: Assumed[Share] = 0.05
"""Launches, kernels, clocks and work that differ by less than this share count as equal."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """An amount per step in A and in B. As text `3,200 → 90`."""

    a: float
    b: float

    def __str__(self) -> str:
        return f"{count(self.a)} → {count(self.b)}"

    @property
    def ms(self) -> str:
        """Nanoseconds in A and B, written in milliseconds: `12 → 0.3`, `0 → 379`."""
        a, b = (f"{ns / 1e6:,.{0 if not ns or ns >= 9.95e6 else 1}f}" for ns in (self.a, self.b))
        return f"{a} → {b}"

    @property
    def more(self) -> int:
        """1 if B has more of it, −1 if it has less, 0 if equal."""
        return (self.b > self.a) - (self.b < self.a)

    @property
    def difference(self) -> float:
        """Absolute difference."""
        return abs(self.b - self.a)

    @property
    def largest(self) -> float:
        return max(self.a, self.b)

    @property
    def steady(self) -> bool:
        """Whether they differ by no more than two runs of the same program."""
        return self.difference <= SAME_PACE * self.a

    def fell(self, to: float = AS_GOOD_AS_GONE, least: float = FEWEST_A_STEP) -> bool:
        """Whether the smaller is at most the share `to` of the larger, and the larger at least `least`."""
        return self.largest >= least and min(self.a, self.b) <= to * self.largest


def times(ratio: float) -> str:
    """A ratio: `1.4`, `0.25`, `128`, at least two digits below 10."""
    return f"{ratio:,.0f}" if ratio >= 9.95 else f"{ratio:.2g}"


def quantity(a: Facts, b: Facts, amount: Callable[[Facts], float]) -> Quantity:
    """An amount of both recordings."""
    return Quantity(amount(a), amount(b))


def kernel_counts(a: Facts, b: Facts, categories: tuple[str, ...] = (), phases: tuple[str, ...] = ()) -> Quantity:
    """Kernels and copies of these categories and phases; empty means all."""
    return quantity(a, b, lambda side: side.counts.count(categories, phases))


def kernel_ns(a: Facts, b: Facts, categories: tuple[str, ...] = (), phases: tuple[str, ...] = ()) -> Quantity:
    """Their summed durations, as recorded."""
    return quantity(a, b, lambda side: side.counts.ns(categories, phases))


def idle_ns(a: Facts, b: Facts, *causes: str) -> Quantity:
    """Idle time of the steps with these causes, ns."""
    return quantity(
        a, b, lambda side: sum(ns for cell, ns in side.cells.items() if cell[0] == "idle" and cell[1] in causes)
    )
