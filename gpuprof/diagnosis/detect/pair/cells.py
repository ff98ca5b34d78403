"""A step of a device in cells: busy time by category and phase, idle time by cause and phase, in whole ns.

The cells sum to the step exactly. How much the device works and waits comes from the diagnosis of the compared step
(without the profiler, if known); how these times divide over phases is as recorded, counting all work that the steps
launched, whenever it ran.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.pair.counts import own_work
from gpuprof.diagnosis.detect.pair.side import Known
from gpuprof.diagnosis.idle.gaps import CAUSES, GapColumns
from gpuprof.diagnosis.result.diagnosis import CauseTime, Device, DeviceEstimate, Diagnosis
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.cpu.exclusive_time import exclusive_ns
from gpuprof.timeline.devices import COMMUNICATE, COMPUTE, COPY
from gpuprof.timeline.phases import OTHER, PHASES

if TYPE_CHECKING:
    from gpuprof.diagnosis.mean_step.budget_model import Budget
    from gpuprof.timeline.timeline import Timeline

Cell = tuple[str, str, str]
"""(busy | idle, category or cause, phase)."""
Cells = dict[Cell, int]

_WORK = (("compute_ns", COMPUTE), ("communication_ns", COMMUNICATE), ("copy_ns", COPY))


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """One step of one device: its work by kind and its idle time by cause, in parts of any common unit."""

    device: int
    work: tuple[float, float, float]
    idle: tuple[CauseTime, ...]

    @property
    def busy(self) -> float:
        return sum(self.work)


def device_step(diagnosis: Diagnosis, known: Known) -> DeviceStep | None:
    """The busiest device; None if none did any work."""
    found: Sequence[Device | DeviceEstimate] = diagnosis.devices
    if known != "recorded" and diagnosis.devices_estimated:
        found = diagnosis.devices_estimated
    steps = [DeviceStep(d.device, (d.compute_ns, d.communication_ns, d.copy_ns), _causes(d)) for d in found]
    return max(steps, key=lambda s: (s.busy, -s.device), default=None)


def _causes(device: Device | DeviceEstimate) -> tuple[CauseTime, ...]:
    """Idle time by cause; the rest is unknown."""
    left = device.idle_ns - sum(cause.ns for cause in device.idle_by_cause)
    return (*device.idle_by_cause, CauseTime("unknown", left, 0)) if left > 0 else device.idle_by_cause


def cells(device: DeviceStep, step_ns: int, timeline: Timeline, gaps: GapColumns) -> Cells:
    """The step of `step_ns` in cells, without empty ones."""
    names: list[tuple[str, str | int]] = [("busy", kind) for _, kind in _WORK]
    names += [("idle", cause.cause) for cause in device.idle]
    totals = allot(step_ns, [*device.work, *(float(cause.ns) for cause in device.idle)])
    busy, idle = busy_shares(timeline, device.device), idle_shares(gaps, device.device)
    found: Cells = {}
    for (what, name), total in zip(names, totals, strict=True):
        if isinstance(name, int):
            shares = busy[name]
        else:
            shares = {("idle", name, phase): ns for phase, ns in idle.get(name, idle[""]).items()}
        for cell, ns in _split(total, shares, (what, "other" if isinstance(name, int) else name, PHASES[OTHER])):
            found[cell] = found.get(cell, 0) + ns
    return {cell: ns for cell, ns in found.items() if ns}


def excess(budget: Budget | None) -> Cells:
    """Excess of some steps over the usual one, per mean step: waiting for batches, and other CPU work."""
    found: Cells = {}
    for one in budget.excess if budget is not None and budget.source == "free" else ():
        cell = ("idle", "input", "data") if one.cause == "input" else ("idle", "python", PHASES[OTHER])
        if one.mean_ns:
            found[cell] = found.get(cell, 0) + one.mean_ns
    return found


def added(one: Cells, more: Cells) -> Cells:
    """The sum of two steps' cells."""
    return {cell: one.get(cell, 0) + more.get(cell, 0) for cell in dict.fromkeys([*one, *more])}


def _split(total: int, shares: dict[Cell, float], otherwise: Cell) -> list[tuple[Cell, int]]:
    """A total divided over cells in proportion to their shares; all in `otherwise` without shares."""
    if not shares:
        return [(otherwise, total)]
    return list(zip(shares, allot(total, list(shares.values())), strict=True))


def busy_shares(timeline: Timeline, device: int) -> dict[int, dict[Cell, float]]:
    """Kind of work → cell → ns that it alone gets, for work that the window's steps launched: compute has precedence
    over communication over copies, and simultaneous work of one kind shares the time."""
    gpu, rows = timeline.trace.gpu, own_work(timeline)
    rows = rows[gpu.device[rows] == device]
    start, end = gpu.start_ns[rows], gpu.end_ns[rows]
    low, high = (int(start.min()), int(end.max())) if len(rows) else (0, 0)
    own = exclusive_ns(start, end, timeline.kind[rows], low, high)
    group = timeline.category[rows].astype(np.int64) * len(PHASES) + timeline.phase[rows]
    found: dict[int, dict[Cell, float]] = {}
    for _, kind in _WORK:
        mine = timeline.kind[rows] == kind
        sums = np.bincount(group[mine], weights=own[mine], minlength=len(CATEGORIES) * len(PHASES))
        found[kind] = {
            ("busy", CATEGORIES[code // len(PHASES)], PHASES[code % len(PHASES)]): float(sums[code])
            for code in np.flatnonzero(sums > 0).tolist()
        }
    return found


def idle_shares(gaps: GapColumns, device: int) -> dict[str, dict[str, float]]:
    """Cause → phase → ns of the device's gaps; the empty cause has all of them."""
    mine = gaps.device == device
    phase = gaps.phase[mine]
    found: dict[str, dict[str, float]] = {}
    columns = [(cause, gaps.by_cause[mine, code]) for code, cause in enumerate(CAUSES)]
    for cause, ns in [*columns, ("", gaps.ns[mine])]:
        sums = np.bincount(phase, weights=ns.astype(np.float64), minlength=len(PHASES))
        if sums.sum() > 0 or not cause:
            found[cause] = {PHASES[code]: float(sums[code]) for code in np.flatnonzero(sums > 0).tolist()}
    return found


def allot(whole: int, weights: Sequence[float]) -> list[int]:
    """`whole`, of either sign, divided in proportion to the weights (none negative); the rounding rest goes to those
    with the largest remainder, the first of equals.

    If all weights are 0, the first part gets everything; without weights the result is empty.
    """
    if not weights:
        return []
    total = math.fsum(weights)
    if not total > 0:
        return [whole, *[0] * (len(weights) - 1)]
    sign, size = (-1, -whole) if whole < 0 else (1, whole)
    exact = [size * (weight / total) for weight in weights]
    given = [math.floor(value) for value in exact]
    left = size - sum(given)
    # A float may have rounded up to the next whole number, so that one too many was given.
    order = sorted(range(len(given)), key=lambda i: (given[i] - exact[i], i))
    step = 1 if left >= 0 else -1
    at = 0
    while left:
        i = order[at % len(order)]
        if given[i] + step >= 0:
            given[i] += step
            left -= step
        at += 1
    return [sign * value for value in given]
