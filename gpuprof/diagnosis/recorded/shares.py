"""The average step of a device: as recorded, and with the profiler's cost taken out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpuprof.diagnosis.idle.gaps import CAUSES, COLLECTING, IDLE_CAUSES, GapColumns
from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.diagnosis.recorded.gap_summary import cause_times
from gpuprof.diagnosis.result.diagnosis import CauseTime, Device, DeviceEstimate, Profiler
from gpuprof.replay.mean_step import HOST_LUMPS
from gpuprof.replay.unprofiled.host_pace import pace_and_spread
from gpuprof.replay.unprofiled.profiler_cost import recorded_in_window, with_left_out
from gpuprof.timeline.timeline import Timeline
from gpuprof.units import Assumed, Share, WholeNs

HOST_CAUSES = ("launch", "sync", "python", "allocator", "cpu_compute", "slow_call", "profiler", COLLECTING)

_SLOWED_FIRST = (("profiler",), ("launch", "python", "sync", "allocator", "slow_call"))
"""Causes from which the profiler's cost is subtracted, in this order: its hooks run in ops, calls and Python. The rest
is subtracted from exposed communication: other ranks are slowed too, and this one waits for them in its collectives."""
_SLOWED_LAST = (("input", "transfer", "cpu_compute"), IDLE_CAUSES)
"""Causes to subtract from next, if the measured step is still shorter."""


_EXCESS = dict.fromkeys(HOST_LUMPS, "python") | {
    "input": "input", "allocator": "allocator", "new_shapes": "slow_call", "compile": "slow_call",
}  # fmt: skip
"""What the device waits for during events of some steps; unknown for evaluation, which uses CPU and GPU."""

UNKNOWN_SHARE: Assumed[Share] = 0.25
"""If a larger share of the idle time than this is unexplained, the CPU-bound fraction is unknown."""


PAUSE_NS: Assumed[WholeNs] = 50_000
"""Pauses between launched kernels shorter than this, ns, are latency, which is a few µs. A device that pauses ten times
as long waits for a stream, a rank or a device that the recording does not show. Assumed; recorded pauses are below 6 µs
or above 55 µs on average."""


@dataclass(frozen=True, slots=True)
class Shares:
    """One step of a device in ns: work by kind, idle by cause."""

    device: int
    step_ns: float
    compute_ns: float
    communication_ns: float
    copy_ns: float
    idle_ns: dict[str, float]
    pause_ns: float = 0
    """Mean length of the pauses during which launched work waited."""
    hidden_ns: float = 0
    """The part of `busy_ns` in which the critical path was on the CPU (`hidden_work`)."""

    @property
    def busy_ns(self) -> float:
        return self.compute_ns + self.communication_ns + self.copy_ns

    @property
    def host_ns(self) -> float:
        """Idle time caused by the CPU's own work."""
        return sum(self.idle_ns.get(cause, 0) for cause in HOST_CAUSES)


def average_step(device: Device, steps: int) -> Shares:
    """The device's window, divided by its steps."""
    return Shares(
        device=device.device,
        step_ns=device.window_ns / steps,
        compute_ns=device.compute_ns / steps,
        communication_ns=device.communication_ns / steps,
        copy_ns=device.copy_ns / steps,
        idle_ns={cause.cause: cause.ns / steps for cause in device.idle_by_cause},
        pause_ns=next((c.ns / c.count for c in device.idle_by_cause if c.cause == "device"), 0),
    )


def without_profiler(shares: Shares, cost_ns: float) -> Shares:
    """The step without `cost_ns` of profiler cost, as far as waits for the CPU and communication allow."""
    left = max(cost_ns, 0)
    idle, left = _take(shares.idle_ns, _SLOWED_FIRST, left)
    waited = min(left, shares.communication_ns)
    removed = max(cost_ns, 0) - left + waited
    return replace(
        shares,
        step_ns=shares.step_ns - removed,
        communication_ns=shares.communication_ns - waited,
        idle_ns=idle,
    )


def _take(idle: dict[str, float], pools: Iterable[Iterable[str]], left: float) -> tuple[dict[str, float], float]:
    """(idle times − `left` ns, taken from one pool after another and in proportion within a pool; the rest, ns)."""
    idle = dict(idle)
    for causes in pools:
        pool = sum(idle.get(c, 0) for c in causes)
        take = min(left, pool)
        for cause in causes:
            if pool > 0 and cause in idle:
                idle[cause] -= idle[cause] * take / pool
        left -= take
    return idle, left


def with_excess(shares: Shares, budget: Budget) -> Shares:
    """The mean step: the usual one plus the excess of some steps, as idle time of the device."""
    idle = dict(shares.idle_ns)
    for one in budget.excess:
        cause = _EXCESS.get(one.cause, "unknown")
        idle[cause] = idle.get(cause, 0) + (one.mean_ns or 0)
    idle["unknown"] = idle.get("unknown", 0) + budget.paused_ns
    added = sum(idle.values()) - sum(shares.idle_ns.values())
    return replace(shares, step_ns=shares.step_ns + added, idle_ns=idle)


def with_step(shares: Shares, step_ns: int) -> Shares:
    """The step scaled to its measured length: kernels keep their time, waits for the CPU shrink.

    If the measured step is shorter than the device's work (another batch, another clock), the work is scaled to fit; if
    it is longer than the recorded step, the rest is waiting for something that the recording does not show.
    """
    shorter = without_profiler(shares, shares.step_ns - step_ns)
    idle, _ = _take(shorter.idle_ns, _SLOWED_LAST, max(shorter.step_ns - step_ns, 0))
    fit = min(1.0, step_ns / shorter.busy_ns) if shorter.busy_ns else 1.0
    if step_ns > shares.step_ns:
        idle["unknown"] = idle.get("unknown", 0) + step_ns - shares.step_ns
    return replace(
        shares,
        step_ns=step_ns,
        compute_ns=shorter.compute_ns * fit,
        communication_ns=shorter.communication_ns * fit,
        copy_ns=shorter.copy_ns * fit,
        hidden_ns=shorter.hidden_ns * fit,
        idle_ns=idle,
    )


def shares_of(estimate: DeviceEstimate) -> Shares:
    """An estimated step as shares."""
    return Shares(
        device=estimate.device,
        step_ns=estimate.step_ns,
        compute_ns=estimate.compute_ns,
        communication_ns=estimate.communication_ns,
        copy_ns=estimate.copy_ns,
        idle_ns={cause.cause: cause.ns for cause in estimate.idle_by_cause},
    )


def estimate(shares: Shares) -> DeviceEstimate:
    """The step in whole ns; its parts sum exactly."""
    step = round(shares.step_ns)
    work = [int(ns) for ns in (shares.compute_ns, shares.communication_ns, shares.copy_ns)]
    idle = step - sum(work)
    causes = {cause: int(ns) for cause, ns in shares.idle_ns.items()}
    if causes:
        # The rounding error goes to the largest.
        causes[max(causes, key=lambda c: causes[c])] += idle - sum(causes.values())
    waiting = idle - causes.get("device", 0) - causes.get("unknown", 0)
    return DeviceEstimate(
        device=shares.device,
        step_ns=step,
        compute_ns=work[0],
        communication_ns=work[1],
        copy_ns=work[2],
        idle_ns=idle,
        cpu_bound_fraction=waiting / step,
        idle_by_cause=tuple(
            CauseTime(cause, ns, 0) for cause, ns in sorted(causes.items(), key=lambda item: -item[1]) if ns
        ),
    )


def devices(timeline: Timeline, columns: GapColumns) -> tuple[Device, ...]:
    """Every device over the window, as recorded."""
    result, at, unlaunched = [], 0, columns.unlaunched_ns
    for device in timeline.devices:
        mine = slice(at, at + len(device.gaps))  # gaps are in order of device
        at = mine.stop
        window = device.high - device.low
        unknown = int(columns.by_cause[mine, CAUSES.index("unknown")].sum())
        known = unknown <= UNKNOWN_SHARE * device.idle_ns
        result.append(
            Device(
                device=device.device,
                window_ns=window,
                compute_ns=device.compute_ns,
                communication_ns=device.communication_ns,
                copy_ns=device.copy_ns,
                idle_ns=device.idle_ns,
                busy_ns=window - device.idle_ns,
                carry_in_ns=device.carry_in_ns,
                carry_out_ns=device.carry_out_ns,
                cpu_bound_fraction=int(unlaunched[mine].sum()) / window if known else None,
                streams=device.streams,
                idle_by_cause=cause_times(columns.by_cause[mine]),
            )
        )
    return tuple(result)


def profiler_cost(timeline: Timeline, found: tuple[Device, ...]) -> Profiler | None:
    """Time that recording may have added to a step: the cost of events on the threads that drive the devices.

    At most the waits for the CPU and for slowed peers, on the device that has least of them.
    """
    recorded = recorded_in_window(timeline)
    events = int((recorded.ops + recorded.calls + recorded.frames).sum())
    if not events:
        return None
    steps = len(timeline.steps.start_ns)
    slowed = [average_step(d, steps) for d in found]
    most = int(min((s.host_ns + s.communication_ns for s in slowed), default=0))
    pace, spread = pace_and_spread(timeline)
    usual = float(with_left_out(recorded, timeline).cost_ns(pace).sum()) / steps
    low, typical, high = (min(round(cost), most) for cost in (usual / spread, usual, usual * spread))
    return Profiler(events // steps, low, typical, high)
