"""The sentence on what the device waits for in the rest of a step."""

from __future__ import annotations

from collections.abc import Mapping

from gpuprof.diagnosis.result.diagnosis import Kernels
from gpuprof.diagnosis.sentences import duration
from gpuprof.units import Assumed, Share

MOST_OF_REST: Assumed[Share] = 0.5
"""Share of the idle time from which on a cause is "most of the rest"."""
BY_CPU = ("launch", "cpu_compute", "python", "sync")
"""Causes that are all waits for the CPU between its launches; they count together, here and in the headline."""
BY_HOST = ("slow_call", *BY_CPU)
"""Causes under which compiling appears."""


def first_cause(idle_ns: Mapping[str, float]) -> str:
    """The cause of most idle time. Those of BY_CPU count together; the largest of them is returned for all."""
    pooled = sum(idle_ns.get(cause, 0.0) for cause in BY_CPU)
    return max(idle_ns, key=lambda c: (pooled if c in BY_CPU else idle_ns[c], idle_ns[c]), default="")


def rest_of_step(
    idle_ns: Mapping[str, float], kernels: Kernels, compiling_ns: float, alone: bool, each: str = " a step"
) -> str:
    """`Most of the rest is waiting for the next batch.`: the largest cause and its part of the idle time.
    Those of BY_CPU count together; the largest of them is named.

    `idle_ns`: idle time of a step by cause; `compiling_ns`: CPU time of a step spent compiling; `alone`: whether there
    is one GPU and one rank; `each`: words after counts and times of a step.
    """
    idle = sum(idle_ns.values())
    pooled = sum(idle_ns.get(cause, 0.0) for cause in BY_CPU)
    first = first_cause(idle_ns)
    if first in BY_HOST and compiling_ns > idle / 2:
        host = sum(idle_ns.get(cause, 0.0) for cause in BY_HOST)
        return (
            f"{_part(host, idle)} is waiting for the CPU (host), which compiles code: {duration(compiling_ns)} of it."
        )
    part = _part(pooled if first in BY_CPU else idle_ns[first], idle)
    return f"{part} is waiting for {_what(first, kernels, alone, each)}."


def _part(ns: float, idle: float) -> str:
    """How much of the rest: most of it, or the largest part with its size."""
    if ns >= MOST_OF_REST * idle:
        return "Most of the rest"
    return f"The largest part of the rest, {duration(ns)} of {duration(idle)},"


def _what(cause: str, kernels: Kernels, alone: bool, each: str) -> str:
    pieces = round(kernels.launches_per_step)
    launches = f"{'one kernel or copy' if pieces == 1 else f'{pieces:,} kernels and memory copies'}"
    on = "the streams" if alone else "the streams, ranks or devices"
    return {
        "launch": f"the CPU (host), which launches {launches}{each}, half of them under"
        f" {duration(kernels.median_ns or 0)} long",
        "python": f"the CPU (host), which runs Python code and launches {launches}{each}",
        "cpu_compute": "the CPU (host), which computes on tensors in host memory itself",
        "slow_call": "single CPU calls that take milliseconds: planning, loading code, compiling",
        "sync": "the CPU (host), which itself waited for the GPU before it launched more",
        "input": "the next batch",
        "transfer": "copies that block the CPU (host)",
        "allocator": "the CPU (host), which allocates or frees GPU memory",
        "profiler": "the profiler's own buffers",
        "device": f"work that is already launched: {on} that it depends on, or the gaps between kernels",
        "communication": "collectives" if alone else "other ranks",
        "unknown": "something that was not recorded",
        "garbage_collection": "Python, which collects garbage and launches nothing meanwhile",
    }[cause]
