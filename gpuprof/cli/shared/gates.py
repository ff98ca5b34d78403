"""`--fail-on METRIC:LIMIT`: limits for a pipeline, a share (`idle:40%`) or a time (`step_time:200ms`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuprof.diagnosis.result.diagnosis import Device, DeviceEstimate, Diagnosis
from gpuprof.units import Convention, Ns

SHARES = ("idle", "cpu_bound", "unattributed")
TIMES = ("step_time",)
CAUSES = (
    "launch", "cpu_compute", "slow_call", "sync", "python", "allocator", "input", "transfer", "communication", "device",
    "profiler", "unknown", "garbage_collection",
)  # fmt: skip
_UNIT_NS: Convention[dict[str, Ns]] = {"ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}
_LIMIT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(%|\w+)")


@dataclass(frozen=True, slots=True)
class Gate:
    """A metric and its limit: a share (0 to 1), or nanoseconds."""

    metric: str
    limit: float
    text: str
    """The limit as the user wrote it."""


def parse(text: str) -> Gate:
    """Parses `METRIC:LIMIT`. Raises ValueError with a sentence if it is not valid."""
    metric, _, limit = (part.strip() for part in text.partition(":"))
    if metric not in (*SHARES, *TIMES, *CAUSES):
        known = f"{', '.join((*SHARES, *TIMES))} and the causes of idle time {', '.join(CAUSES)}"
        raise ValueError(f"{metric!r} is not a metric; choose from {known}")
    found = _LIMIT.fullmatch(limit)
    unit = found[2] if found else None
    if metric in TIMES:
        if found is None or unit not in _UNIT_NS:
            raise ValueError(f"{metric} needs a time, such as {metric}:200ms")
        return Gate(metric, float(found[1]) * _UNIT_NS[found[2]], limit)
    if found is None or unit != "%" or float(found[1]) > 100:
        raise ValueError(f"{metric} needs a percentage, such as {metric}:40%")
    return Gate(metric, float(found[1]) / 100, limit)


def measure(gate: Gate, diagnosis: Diagnosis) -> float | None:
    """The metric in the diagnosis, for the worst device; None if not known."""
    devices, kernels, steps = diagnosis.devices, diagnosis.kernels, diagnosis.steps
    if gate.metric == "step_time":
        if steps is None or steps.source == "none":
            return None
        return None if diagnosis.step_ns is None else float(diagnosis.step_ns)
    if gate.metric == "unattributed":
        return kernels.unattributed_ns / kernels.total_ns if kernels and kernels.total_ns else None
    # Without the profiler's cost if known: a gate is about the training, not about its recording.
    estimated = diagnosis.devices_estimated or ()
    if gate.metric == "idle":
        recorded = [d.idle_ns / d.window_ns for d in devices if d.window_ns]
        return max([d.idle_ns / d.step_ns for d in estimated if d.step_ns] or recorded, default=None)
    if gate.metric == "cpu_bound":
        fractions = [d.cpu_bound_fraction for d in estimated or devices if d.cpu_bound_fraction is not None]
        return max(fractions, default=None)
    shares = [_cause_share(device, gate.metric) for device in estimated or devices]
    return max((share for share in shares if share is not None), default=None)


def _cause_share(device: Device | DeviceEstimate, cause: str) -> float | None:
    """The share of the device's time that it is idle for this cause."""
    total = device.window_ns if isinstance(device, Device) else device.step_ns
    return sum(c.ns for c in device.idle_by_cause if c.cause == cause) / total if total else None
