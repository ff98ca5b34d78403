"""The verdict of the partition: what the window was spent on, and so what binds the step.

A share of idle time with a cause is time that the device lost to that cause; what is left is the device's own work.
This says what a step *is made of*, not yet what would shorten it, and it knows the profiler's cost only roughly.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.diagnosis.model import Bound, Family, Kernels, Profiler, Verdict
from gpuprof.timeline.categories import TENSOR_CATEGORIES

HOST_CAUSES = ("launch", "sync", "python", "allocator", "profiler")

WAITING_SHARE = 0.25
"""The device must lose this share of the step to something before that something binds it: removing less than a
quarter of the step gains less than 1.33×, and a device that works three quarters of the time profits more from
faster work. The replay's sensitivities replace this rule."""

BALANCED = 0.05
"""Two shares closer than this are told apart by noise as well as by cause (DESIGN §2)."""

EVENT_COST_NS = (500, 2_000, 5_000)
"""What one recorded op or call costs the host: least, median and most of five H200 runs whose step was also timed
without a profiler (0.7, 1.8, 2.0, 2.4 and 4.9 µs; shapes recorded): (recorded − unprofiled) ÷ recorded events."""

LATENCY_NS = 4_000
"""Kernels shorter than this are bound by their launch and ramp-up, not by what they compute or move."""

_FAMILY: dict[str, Family] = {"compute": "compute", "memory": "memory", "host": "host", "input": "host", "transfer": "host"}


@dataclass(frozen=True, slots=True)
class Shares:
    """One step of the primary device in ns: work by kind, idle by cause."""

    step_ns: float
    compute_ns: float
    communication_ns: float
    copy_ns: float
    idle_ns: dict[str, float]

    @property
    def host_ns(self) -> float:
        """Idle time that the host's own work causes."""
        return sum(self.idle_ns.get(cause, 0) for cause in HOST_CAUSES)

    def lost(self) -> dict[Bound, float]:
        """Share of the step lost to each thing that is not the device's own work."""
        idle = self.idle_ns
        times: dict[Bound, float] = {
            "host": self.host_ns,
            "input": idle.get("input", 0),
            "transfer": idle.get("transfer", 0) + self.copy_ns,
            "communication": idle.get("communication", 0) + self.communication_ns,
        }
        return {bound: ns / self.step_ns for bound, ns in times.items()}


def without_profiler(shares: Shares, cost_ns: float) -> Shares:
    """The step when the profiler no longer takes `cost_ns` of the host's time: its idle time shrinks by as much.

    Time in Python and in launches goes first, in proportion: there the profiler's hooks run.
    """
    idle = dict(shares.idle_ns)
    left = min(cost_ns, sum(idle.values()))
    removed = left
    for causes in (("profiler",), ("launch", "python", "sync", "allocator"), ("input", "transfer"), tuple(idle)):
        pool = sum(idle.get(c, 0) for c in causes)
        take = min(left, pool)
        for cause in causes:
            if pool > 0 and cause in idle:
                idle[cause] -= idle[cause] * take / pool
        left -= take
    return Shares(shares.step_ns - removed, shares.compute_ns, shares.communication_ns, shares.copy_ns, idle)


def judge(shares: Shares, kernels: Kernels, profiler: Profiler | None, measured: bool) -> Verdict:
    """What binds the step. `measured`: the shares are of a step timed without the profiler."""
    bound, cause = _bound(shares, kernels)
    text = _summary(shares, kernels)
    if not measured and profiler is not None:
        likely = without_profiler(shares, profiler.events_per_step * EVENT_COST_NS[1])
        after, after_cause = _bound(likely, kernels)
        if after != bound:
            text += (
                f" As recorded it looks {bound}-bound, but the profiler's own cost ({profiler.events_per_step:,} recorded"
                f" events a step) likely explains that: without it the step is {after}-bound."
            )
            bound, cause = after, after_cause
    return Verdict(bound=bound, family=_FAMILY.get(bound, "other"), cause=cause, confidence=None, summary=text)


def _bound(shares: Shares, kernels: Kernels) -> tuple[Bound, str | None]:
    lost = shares.lost()
    first = max(lost, key=lambda b: lost[b])
    waiting = sum(lost.values())
    device = shares.compute_ns / shares.step_ns
    if waiting >= WAITING_SHARE and (lost[first] >= WAITING_SHARE / 2 or lost[first] > device):
        return first, _cause(shares) if first == "host" else None
    if shares.idle_ns.get("device", 0) / shares.step_ns >= max(WAITING_SHARE, device):
        # All work was launched in time and the device still idles: it waits for itself, or for another device.
        return "latency", None
    return _device_bound(kernels), None


def _cause(shares: Shares) -> str:
    """The host's part that costs most; the profiler's own time is nobody's cause."""
    return max((c for c in HOST_CAUSES if c != "profiler"), key=lambda c: shares.idle_ns.get(c, 0))


def _device_bound(kernels: Kernels) -> Bound:
    """Compute, memory or latency, by the categories of the kernels: FLOPs and bytes are not yet weighed."""
    tensor = sum(c.ns for c in kernels.by_category if c.category in TENSOR_CATEGORIES)
    rest = sum(c.ns for c in kernels.by_category if c.bound == "memory")
    total = tensor + rest
    if not total:
        return "memory"
    if kernels.median_ns is not None and kernels.count and total / kernels.count < LATENCY_NS:
        return "latency"
    if abs(tensor - rest) < BALANCED * total:
        return "balanced"
    return "compute" if tensor > rest else "memory"


def _summary(shares: Shares, kernels: Kernels) -> str:
    """One or two sentences: how much of the step the device works, and what it waits for."""
    busy = shares.compute_ns + shares.communication_ns + shares.copy_ns
    step = shares.step_ns
    text = f"The GPU works {_ms(busy)} of {_ms(step)} a step"
    if shares.communication_ns > 0.05 * step:
        text += f", {_ms(shares.communication_ns)} of it in communication that nothing overlaps"
    text += "."
    idle = sum(shares.idle_ns.values())
    if idle < 0.05 * step:
        return f"{text} The host keeps it fed."
    first = max(shares.idle_ns, key=lambda c: shares.idle_ns[c])
    launches = f"{kernels.launches_per_step:,.0f}"
    median = kernels.median_ns or 0
    why = {
        "launch": f"the host, which launches {launches} pieces of work a step, half of them under {_us(median)} long",
        "python": f"the host, which is in Python between its {launches} launches a step",
        "sync": "the host, which had itself waited for the GPU before it launched more",
        "input": "the next batch",
        "transfer": "copies that block the host",
        "allocator": "the host, which is allocating or freeing GPU memory",
        "profiler": "the profiler's own buffers",
        "device": "work that is already launched: what that depends on, or the pauses between kernels",
        "communication": "other ranks",
        "unknown": "something that the recording does not show",
    }[first]
    return f"{text} Most of the rest it waits for {why}."


def _ms(ns: float) -> str:
    ms = ns / 1e6
    return f"{ms:.3g} ms" if ms < 100 else f"{ms:,.0f} ms"


def _us(ns: float) -> str:
    return f"{max(ns, 100) / 1e3:.2g} µs" if ns < 1e5 else _ms(ns)
