"""The step split into a device's work and waits: the usual step, and the mean step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from gpuprof.diagnosis.mean_step.budget_model import Budget, Excess
from gpuprof.diagnosis.mean_step.timed_steps import PAUSES, VARIATION
from gpuprof.diagnosis.recorded.shares import PAUSE_NS
from gpuprof.diagnosis.result.diagnosis import Device, DeviceEstimate, Diagnosis
from gpuprof.units import Assumed, Share

IDLE = "idle"
NEITHER = (VARIATION, PAUSES, "evaluation", "save", "logging", "periodic")
"""Parts that are neither the step's own work nor waiting: events of some steps during which the GPU may work, and
unexplained time."""
LEAST_EXCESS: Assumed[Share] = 0.005
"""Smallest share of the mean step at which a cause of excess is shown separately; smaller ones count as variation."""


@dataclass(frozen=True, slots=True)
class BarPart:
    """One stretch of the bar: `key` is its name and colour, `idle` distinguishes waiting from work. Keys in NEITHER are
    neither: what the device did meanwhile is unknown."""

    key: str
    ns: int
    idle: bool
    on_streams: bool = False
    """For key `device`: whether it waits for other streams or GPUs, rather than between consecutive kernels."""

    @property
    def works(self) -> bool:
        """Whether the device works."""
        return not self.idle and self.key not in NEITHER


@dataclass(frozen=True, slots=True)
class Bar:
    """How one device spends a step; the parts sum to `total_ns`."""

    device: int
    total_ns: int
    parts: tuple[BarPart, ...]

    def idle_ns(self) -> int:
        return sum(part.ns for part in self.parts if part.idle)

    def busy_ns(self) -> int:
        return sum(part.ns for part in self.parts if part.works)


@dataclass(frozen=True, slots=True)
class Beyond:
    """Mean step − usual step, as causes, pauses and variation, which sum to it."""

    causes: tuple[Excess, ...]
    """Causes large enough to be shown separately."""
    pauses_ns: int
    variation_ns: int
    """The rest, of either sign."""


def estimated(diagnosis: Diagnosis) -> bool:
    """Whether the bars show the step without the profiler's cost rather than as recorded."""
    return bool(diagnosis.devices_estimated)


def bars(diagnosis: Diagnosis) -> tuple[Bar, ...]:
    """One bar per device, for one step; idle time is split by cause if the causes are known."""
    waiting = frozenset(d.device for d in diagnosis.devices if _waits_for_streams(d))
    if diagnosis.devices_estimated:
        budget = diagnosis.budget
        return tuple(_of_mean_step(_bar(d, d.step_ns, waiting), budget) for d in diagnosis.devices_estimated)
    steps = diagnosis.steps.count if diagnosis.steps else 1
    return tuple(_per_step(_bar(d, d.window_ns, waiting), steps) for d in diagnosis.devices)


def _waits_for_streams(device: Device) -> bool:
    """Whether a device's pauses before launched work are longer than those between consecutive kernels."""
    return any(one.cause == "device" and one.ns >= PAUSE_NS * max(one.count, 1) for one in device.idle_by_cause)


def _per_step(bar: Bar, steps: int) -> Bar:
    """The bar of several steps divided by their number."""
    total = round(bar.total_ns / steps)
    return Bar(bar.device, total, _scaled(bar.parts, total))


def _scaled(parts: tuple[BarPart, ...], total_ns: int) -> tuple[BarPart, ...]:
    """The parts scaled to sum to a total. Rounding the running sum keeps the sum exact."""
    until = [0, *accumulate(part.ns for part in parts)]
    at = [round(ns * total_ns / until[-1]) if until[-1] else 0 for ns in until]
    return tuple(replace(part, ns=at[i + 1] - at[i]) for i, part in enumerate(parts))


def _bar(device: Device | DeviceEstimate, total_ns: int, on_streams: frozenset[int]) -> Bar:
    work = [
        BarPart("compute", device.compute_ns, False),
        BarPart("communication", device.communication_ns, False),
        BarPart("copy", device.copy_ns, False),
    ]
    waits = device.device in on_streams
    waiting = [
        BarPart(c.cause, c.ns, True, waits and c.cause == "device")
        for c in sorted(device.idle_by_cause, key=lambda c: -c.ns)
    ]
    if sum(part.ns for part in waiting) != device.idle_ns:
        waiting = [BarPart(IDLE, device.idle_ns, True)]
    return Bar(device.device, total_ns, tuple(part for part in work + waiting if part.ns))


def beyond_usual(budget: Budget) -> Beyond:
    """Difference between mean and usual step, in parts that are large enough to show."""
    least = LEAST_EXCESS * budget.mean_ns
    causes = tuple(one for one in budget.excess if one.mean_ns and abs(one.mean_ns) >= least)
    pauses = budget.paused_ns if budget.paused_ns >= least else 0
    known = budget.usual_ns + sum(one.mean_ns or 0 for one in causes) + pauses
    return Beyond(causes, pauses, budget.mean_ns - known)


def differs(budget: Budget) -> bool:
    """Whether any shown part distinguishes the mean step from the usual one."""
    found = beyond_usual(budget)
    varies = abs(found.variation_ns) >= LEAST_EXCESS * budget.mean_ns
    return bool(found.causes or found.pauses_ns or varies)


def _of_mean_step(bar: Bar, budget: Budget | None) -> Bar:
    """The mean step: the usual one plus causes, pauses and variation; the parts sum to it exactly.

    A cause of waiting that occurs both in the usual step and as excess is one part. If steps are shorter on average
    than the usual one, all parts of the usual step are scaled down."""
    if budget is None or budget.source != "free" or not bar.parts:
        return bar
    beyond = beyond_usual(budget)
    shown = sum(one.mean_ns or 0 for one in beyond.causes) + beyond.pauses_ns
    usual_ns = min(budget.usual_in_mean_ns, budget.mean_ns - shown)
    usual = _scaled(bar.parts, usual_ns)
    added = [BarPart(one.cause, one.mean_ns or 0, one.cause not in NEITHER) for one in beyond.causes]
    waited = {part.key: part.ns for part in usual if part.idle}
    same = {part.key for part in added if part.idle}
    parts = [part for part in usual if not (part.idle and part.key in same)]
    parts += [replace(part, ns=part.ns + (waited.get(part.key, 0) if part.idle else 0)) for part in added]
    parts += [BarPart(PAUSES, beyond.pauses_ns, False), BarPart(VARIATION, budget.mean_ns - shown - usual_ns, False)]
    return Bar(bar.device, budget.mean_ns, tuple(part for part in parts if part.ns))
