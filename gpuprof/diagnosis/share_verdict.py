"""The verdict of the partition, for recordings that cannot be replayed: what the window was spent on.

A share of idle time with a cause is time that the device lost to that cause; what is left is the device's own work.
This says what a step *is made of*, not what would shorten it, and it knows the profiler's cost only roughly.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuprof.diagnosis.model import Bound, Kernels, Profiler, Verdict
from gpuprof.diagnosis.rest_of_step import rest_of_step
from gpuprof.diagnosis.sentences import in_ms
from gpuprof.diagnosis.shares import HOST_CAUSES, Shares, without_profiler
from gpuprof.diagnosis.verdict import FAMILIES
from gpuprof.timeline.categories import TENSOR_CATEGORIES

WAITING_SHARE = 0.25
"""The device must lose this share of the step to something before that something binds it: removing less than a
quarter of the step gains less than 1.33×, and a device that works three quarters of the time profits more from
faster work."""

BALANCED = 0.05
"""Two shares closer than this are told apart by noise as well as by cause (DESIGN §2)."""

PAUSE_NS = 50_000
"""From one kernel to the next a device takes some µs; ten times as long is no latency, it waits for something."""

LATENCY_NS = 4_000
"""Kernels shorter than this are bound by their launch and ramp-up, not by what they compute or move."""


def judge_shares(
    shares: Shares, kernels: Kernels, profiler: Profiler | None, whole: bool, alone: bool = False
) -> Verdict:
    """What binds the step.

    `profiler`: the cost that is still in the shares, None if they are of a step timed without it. `whole`: no event
    is missing. Missing GPU events look like idle time, so then only a busy device can be believed. `alone`: see
    `summary`.
    """
    bound, cause = _bound(shares, kernels)
    text = summary(shares, kernels, alone=alone)
    if profiler is not None:
        after, after_cause = _bound(without_profiler(shares, min(profiler.typical_ns, shares.host_ns)), kernels)
        if bound is not None and after is not None and after != bound:
            text += (
                f" As recorded it looks {_named(bound)}, but the profiler's own cost ({profiler.events_per_step:,}"
                f" recorded events a step) likely explains that: without it the step is {_named(after)}."
            )
            bound, cause = after, after_cause
    family = None if bound is None else FAMILIES.get(bound, "other")
    verdict = Verdict(bound=bound, family=family, cause=cause, confidence=None, summary=text)
    return undecided(verdict) if not whole and waits(shares) else verdict


def waits(shares: Shares) -> bool:
    """Whether the device waits so much that missing events would explain it."""
    return shares.busy_ns < (1 - WAITING_SHARE) * shares.step_ns


def undecided(verdict: Verdict) -> Verdict:
    """No verdict on a file that lost events, since a device that waits may only seem to."""
    text = f"{verdict.summary} Events are missing from this file, and a missing kernel looks like a wait: no verdict."
    return Verdict(bound=None, family=None, cause=None, confidence=None, summary=text)


def _bound(shares: Shares, kernels: Kernels) -> tuple[Bound | None, str | None]:
    if shares.step_ns <= 0:
        return None, None  # steps of less than a nanosecond each: damaged times
    lost = _lost(shares)
    first = max(lost, key=lambda b: lost[b])
    device = shares.compute_ns / shares.step_ns
    queued, unknown = (shares.idle_ns.get(cause, 0) / shares.step_ns for cause in ("device", "unknown"))
    if unknown >= max(WAITING_SHARE, device, lost[first], queued):
        return None, None
    if sum(lost.values()) >= WAITING_SHARE and (lost[first] >= WAITING_SHARE / 2 or lost[first] > device):
        return first, _cause(shares) if first == "host" else None
    if queued >= max(WAITING_SHARE, device):
        # All work was launched in time and the device still idles: between short kernels that is latency, a longer
        # wait is for a stream, a rank or a device that this recording does not explain.
        return ("latency" if shares.pause_ns < PAUSE_NS else None), None
    return _device_bound(kernels), None


def _lost(shares: Shares) -> dict[Bound, float]:
    """Share of the step lost to each thing that is not the device's own work."""
    idle = shares.idle_ns
    times: dict[Bound, float] = {
        "host": shares.host_ns,
        "input": idle.get("input", 0),
        "transfer": idle.get("transfer", 0) + shares.copy_ns,
        "communication": idle.get("communication", 0) + shares.communication_ns,
    }
    return {bound: ns / shares.step_ns for bound, ns in times.items()}


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


def summary(
    shares: Shares,
    kernels: Kernels,
    limits: Mapping[str, float] | None = None,
    turns: int = 0,
    compiling_ns: float = 0,
    alone: bool = False,
) -> str:
    """Two or three sentences: how much of the step the device works, and what it waits for.

    `limits`: compute | memory | latency → its share of the kernels' time, where that is known. `turns`: how many GPUs
    of the process work one after the other. `compiling_ns`: host time of a step in which code is compiled. `alone`: one
    GPU and one rank, so that no others are spoken of.
    """
    step = shares.step_ns
    text = f"The {'busiest ' if turns else ''}GPU works {in_ms(shares.busy_ns)} of {in_ms(step)} a step"
    if shares.communication_ns > 0.05 * step:
        text += f", {in_ms(shares.communication_ns)} of it in communication that nothing overlaps"
    if shares.copy_ns > 0.05 * step:
        text += f", {in_ms(shares.copy_ns)} of it in copies that nothing overlaps"
    text += "."
    idle = sum(shares.idle_ns.values())
    if idle <= 0.05 * step:
        text += _limited(shares, limits or {})
        waits_for_ranks = not alone and shares.communication_ns >= WAITING_SHARE * step
        if not waits_for_ranks and shares.copy_ns > shares.compute_ns:
            return f"{text} It moves data more than it computes."
        return f"{text} {'That includes waiting for other ranks.' if waits_for_ranks else 'The host keeps it fed.'}"
    if turns:
        return f"{text} The {turns} GPUs take turns: while one works, the others wait for what it computes."
    return f"{text} {rest_of_step(shares.idle_ns, kernels, compiling_ns, alone)}"


_LIMITS = {"compute": "arithmetic", "memory": "memory traffic", "latency": "the start of short kernels"}


def _limited(shares: Shares, limits: Mapping[str, float]) -> str:
    """` Memory traffic limits 370 ms of that, arithmetic 238 ms.`: what a device that always works is slowed by."""
    times = sorted(((share * shares.compute_ns, key) for key, share in limits.items()), reverse=True)
    told = [(ns, _LIMITS[key]) for ns, key in times if ns > 0.05 * shares.step_ns]
    if not told:
        return ""
    (most, first), *others = told
    rest = "".join(f", {name} {in_ms(ns)}" for ns, name in others)
    return f" {first.capitalize()} limits {in_ms(most)} of that{rest}."


def _named(bound: Bound) -> str:
    return "balanced" if bound == "balanced" else f"{bound}-bound"
