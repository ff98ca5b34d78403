"""Samples of a run's GPUs, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuprof.tracefile.run_folder.untrusted import dicts, items, number, string, whole
from gpuprof.tracefile.trace import F64, I32, I64, LATEST_NS, Columns
from gpuprof.units import Assumed, Bits, Convention

_MOST_REASONS: Convention[Bits] = 62
"""Throttle reasons are bits of an int64."""


@dataclass(frozen=True, slots=True)
class TelemetryColumns(Columns):
    """One row per sample and GPU; NaN where a value is missing."""

    unix_ns: I64
    gpu: I32
    power_w: F64
    energy_j: F64
    """Energy since the driver was loaded, J."""
    limit_w: F64
    sm_mhz: F64
    temperature_c: F64
    utilization: F64
    load1: F64
    throttle: I64
    """Bit n: `RunFolder.throttle_reasons[n]` limited the clock."""


_SENSOR_LIMITS: Assumed[dict[str, float]] = {
    "power_w": 1e5,
    "energy_j": 1e13,
    "limit_w": 1e5,
    "sm_mhz": 1e5,
    "temperature_c": 1e3,
    "utilization": 100.0,
}
"""Values read for each GPU → the largest plausible value."""


def telemetry_of(lines: list[dict[str, Any]], used: set[str]) -> tuple[TelemetryColumns, tuple[str, ...]]:
    """Samples of the GPUs that the run used, by UUID; of all GPUs if these are not known."""
    seen = uuids(lines)
    others = seen - used if seen & used else set()
    reasons: dict[str, int] = {}
    times, gpus, loads, throttle = [], [], [], []
    sensors: dict[str, list[float]] = {name: [] for name in _SENSOR_LIMITS}
    for line in lines:
        moment = whole(line.get("unix_ns"), most=LATEST_NS)
        if moment is None:
            continue
        gpus_seen = [gpu for gpu in dicts(line.get("gpus")) if bare_uuid(string(gpu.get("uuid")) or "") not in others]
        for gpu in gpus_seen or [{}]:  # without a GPU a sample still has the CPU load
            times.append(moment)
            index = whole(gpu.get("index"), most=2**31 - 1)
            gpus.append(-1 if index is None else index)
            loads.append(number(line.get("load1"), 1e6))
            for name, most in _SENSOR_LIMITS.items():
                sensors[name].append(number(gpu.get(name), most))
            bits = 0
            for reason in {text for item in items(gpu.get("throttle")) if (text := string(item))}:
                bit = reasons.setdefault(reason, len(reasons)) if len(reasons) < _MOST_REASONS else reasons.get(reason)
                bits |= 0 if bit is None else 1 << bit
            throttle.append(bits)
    columns = TelemetryColumns(
        unix_ns=np.array(times, np.int64),
        gpu=np.array(gpus, np.int32),
        load1=np.array(loads, np.float64),
        throttle=np.array(throttle, np.int64),
        **{name: np.array(values, np.float64) for name, values in sensors.items()},
    )
    return columns, tuple(reasons)


def uuids(lines: list[dict[str, Any]]) -> set[str]:
    """UUIDs of all sampled GPUs."""
    return {bare_uuid(string(gpu.get("uuid")) or "") for line in lines for gpu in dicts(line.get("gpus"))}


def bare_uuid(uuid: str) -> str:
    """A GPU's UUID without NVML's prefix, which torch omits."""
    return uuid.lower().removeprefix("gpu-")
