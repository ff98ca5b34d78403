"""Samples of a run's GPUs, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

from gpuprof.tracefile.run_folder.untrusted import Index, Moment, Text, read_all
from gpuprof.tracefile.trace import F64, I32, I64, Columns
from gpuprof.units import Bits, Convention

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


_Reading = Annotated[float, Meta(ge=0, le=1e5)] | None


class _Gpu(Struct):
    """One GPU in a sample; a higher value than the largest plausible one is invalid."""

    index: Index | None = None
    uuid: Text | None = None
    power_w: _Reading = None
    energy_j: Annotated[float, Meta(ge=0, le=1e13)] | None = None
    limit_w: _Reading = None
    sm_mhz: _Reading = None
    temperature_c: Annotated[float, Meta(ge=0, le=1e3)] | None = None
    utilization: Annotated[float, Meta(ge=0, le=100)] | None = None
    throttle: tuple[Text, ...] = ()

    @property
    def key(self) -> str:
        """What it is known by; empty where it has no UUID."""
        return bare_uuid(self.uuid or "")


class Sample(Struct):
    """A line of telemetry.jsonl."""

    unix_ns: Moment
    load1: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    gpus: tuple[_Gpu, ...] = ()


_SENSORS = ("power_w", "energy_j", "limit_w", "sm_mhz", "temperature_c", "utilization")


def samples_of(lines: list[dict[str, Any]]) -> list[Sample]:
    """The samples in the lines of the file."""
    return read_all(Sample, lines)


def telemetry_of(samples: list[Sample], used: set[str]) -> tuple[TelemetryColumns, tuple[str, ...]]:
    """Samples of the GPUs that the run used, by UUID; of all GPUs if these are not known."""
    seen = uuids(samples)
    others = seen - used if seen & used else set()
    # Without a GPU a sample still has the CPU load.
    rows = [(one, gpu) for one in samples for gpu in [g for g in one.gpus if g.key not in others] or [_Gpu()]]
    reasons: dict[str, int] = {}
    throttle = []
    for _, gpu in rows:
        bits = 0
        for reason in gpu.throttle:
            if len(reasons) < _MOST_REASONS or reason in reasons:
                bits |= 1 << reasons.setdefault(reason, len(reasons))
        throttle.append(bits)
    columns = TelemetryColumns(
        unix_ns=np.array([one.unix_ns for one, _ in rows], np.int64),
        gpu=np.array([-1 if gpu.index is None else gpu.index for _, gpu in rows], np.int32),
        load1=np.array([one.load1 for one, _ in rows], np.float64),
        throttle=np.array(throttle, np.int64),
        **{name: np.array([getattr(gpu, name) for _, gpu in rows], np.float64) for name in _SENSORS},
    )
    return columns, tuple(reasons)


def uuids(samples: list[Sample]) -> set[str]:
    """UUIDs of all sampled GPUs."""
    return {gpu.key for one in samples for gpu in one.gpus}


def bare_uuid(uuid: str) -> str:
    """A GPU's UUID without NVML's prefix, which torch omits."""
    return uuid.lower().removeprefix("gpu-")
