"""Text for what only some steps do, next to what lies above the reach of the usual step."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.diagnosis.mean_step.budget_model import NAMES, Excess
from gpuprof.diagnosis.reach.ledger import gain_without
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.host_model import HostFunction
from gpuprof.diagnosis.sampled.sampled_functions import MOST_PRICED
from gpuprof.diagnosis.sentences import listed
from gpuprof.report.names import file_name, shown
from gpuprof.report.numbers import share
from gpuprof.units import Assumed, Convention, Functions, Share
from gpuprof.value_range import Range

LEAST_RARE_SHARE: Convention[Share] = 0.02
"""Share of the mean step below which what some steps do is not named."""
MOST_FUNCTIONS: Convention[Functions] = 2
LEAST_FUNCTION_SHARE: Assumed[Share] = 0.1
"""Smallest share of the time that some steps add for a function that is named with it."""


@dataclass(frozen=True, slots=True)
class Rare:
    """What some steps do and most do not."""

    ns: int
    """Added to the mean step."""
    gain: Range | None
    """How many times as fast the mean step is without it."""
    what: str
    """`evaluation, every 10 steps`."""
    why: str
    """The functions that take most of it; empty if not known."""

    @property
    def text(self) -> str:
        """What and why."""
        return f"{self.what}: {self.why}" if self.why else self.what


def rare(diagnosis: Diagnosis) -> tuple[Rare, ...]:
    """Each cause that adds more to the mean step than the largest item above the usual step's reach, largest first;
    none without a ledger."""
    found, budget = diagnosis.above_reach, diagnosis.budget
    if found is None or budget is None:
        return ()
    large = [one for one in budget.excess if (one.mean_ns or 0) >= LEAST_RARE_SHARE * budget.mean_ns]
    most = max((item.ns for item in found.items), default=0)
    why = _functions(diagnosis, large[0].mean_ns or 0) if len(large) == 1 else ""
    return tuple(
        Rare(ns, gain_without(ns, budget.mean_ns), _what(one, diagnosis), why)
        for one in large
        if (ns := one.mean_ns or 0) > most
    )


def _what(one: Excess, diagnosis: Diagnosis) -> str:
    budget, unit = diagnosis.budget, diagnosis.unit
    assert budget is not None
    often = f"every {one.every} {unit}s" if one.every is not None else f"in {one.steps} of {budget.steps} timed {unit}s"
    return f"{NAMES.get(one.cause, one.cause)}, {often}, as an average over all {unit}s"


def _functions(diagnosis: Diagnosis, ns: int) -> str:
    """`86 % of it is in Loop.gather (loop.py:401)`: functions that run where the recorded steps, which are usual ones,
    have nothing."""
    host = diagnosis.host
    if host is None or all(one.phase is None for one in host.functions):  # samples are not located in the step
        return ""
    located = sorted(host.functions, key=lambda one: -one.samples)[:MOST_PRICED]
    only = [one for one in located if one.phase is None and one.runs is None]
    only = [one for one in only if one.ns.expected >= LEAST_FUNCTION_SHARE * ns]
    only.sort(key=lambda one: -one.ns.expected)
    return listed(
        [
            f"{share(min(one.ns.expected, ns), ns)} {'' if number else 'of it is '}in {_name(one)}"
            for number, one in enumerate(only[:MOST_FUNCTIONS])
        ]
    )


def _name(one: HostFunction) -> str:
    return f"{shown(one.function, 60)} ({shown(file_name(one.place), 60)})"
