"""A verdict's summary: how much of the step the device works, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping

from gpuprof.diagnosis.model import Kernels
from gpuprof.diagnosis.sentences import in_ms
from gpuprof.diagnosis.shares import Shares
from gpuprof.replay.bound import SMALL


def summary(
    shares: Shares, kernels: Kernels, limits: Mapping[str, float] | None = None, turns: int = 0, compiling_ns: float = 0
) -> str:
    """Two or three sentences: how much of the step the device works, and what it waits for.

    `limits`: compute | memory | latency → its share of the kernels' time, where that is known. `turns`: how many GPUs
    of the process work one after the other. `compiling_ns`: host time of a step in which code is compiled.
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
        alone = shares.communication_ns < SMALL * step
        if alone and shares.copy_ns > shares.compute_ns:
            return f"{text} It moves data more than it computes."
        return f"{text} The host keeps it fed." if alone else f"{text} That includes waiting for other ranks."
    if turns:
        return f"{text} The {turns} GPUs take turns: while one works, the others wait for what it computes."
    first = max(shares.idle_ns, key=lambda c: shares.idle_ns[c])
    if first in ("launch", "python", "sync") and compiling_ns > idle / 2:
        return f"{text} Most of the rest it waits for the host, which compiles code for {in_ms(compiling_ns)} a step."
    pieces = round(kernels.launches_per_step)
    launches = f"{pieces:,} piece{'s' if pieces != 1 else ''} of work"
    median = kernels.median_ns or 0
    why = {
        "launch": f"the host, which launches {launches} a step, half of them under {_us(median)} long",
        "python": f"the host, which is in Python and launches {launches} a step",
        "sync": "the host, which had itself waited for the GPU before it launched more",
        "input": "the next batch",
        "transfer": "copies that block the host",
        "allocator": "the host, which is allocating or freeing GPU memory",
        "profiler": "the profiler's own buffers",
        "device": "work that is already launched: the streams, ranks or devices that it depends on, or the pauses"
        " between kernels",
        "communication": "other ranks",
        "unknown": "something that the recording does not show",
    }[first]
    return f"{text} Most of the rest it waits for {why}."


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


def _us(ns: float) -> str:
    return f"{max(ns, 100) / 1e3:.2g} µs" if ns < 1e5 else in_ms(ns)
