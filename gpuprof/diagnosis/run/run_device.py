"""GPU memory and telemetry of a run."""

from __future__ import annotations

import numpy as np

from gpuprof.diagnosis.result.run_model import GpuTelemetry, RunMemory, Telemetry
from gpuprof.runfile import STAGES
from gpuprof.tracefile.run_folder.run import StepColumns
from gpuprof.tracefile.run_folder.telemetry import TelemetryColumns
from gpuprof.tracefile.trace import ABSENT, F64, I64

UNPROFILED_STAGES = ("settle", "baseline_free", "baseline_sync", "sampling", "after")


def memory_of(steps: StepColumns, rank: int) -> RunMemory:
    """Memory of the run. A profiler keeps tensors alive, so recorded steps count only if there are no others."""
    own = steps.rank == rank
    bare = own & np.isin(steps.stage, [STAGES.index(stage) for stage in UNPROFILED_STAGES]) & ~steps.profiled

    def known(column: I64) -> I64:
        values = column[bare & (column != ABSENT)]
        return values if len(values) else column[own & (column != ABSENT)]

    allocated, reserved, peak = map(known, (steps.allocated_bytes, steps.reserved_bytes, steps.peak_bytes))
    return RunMemory(
        allocated_bytes=int(np.median(allocated)) if len(allocated) else None,
        reserved_bytes=int(np.median(reserved)) if len(reserved) else None,
        peak_bytes=int(peak.max()) if len(peak) else None,
    )


def span_of(steps: StepColumns, *stages: I64) -> tuple[int, int] | None:
    """From the start of the first to the end of the last of these steps."""
    rows = np.concatenate(stages)
    rows = rows[steps.unix_ns[rows] != ABSENT]
    return (int((steps.unix_ns - steps.ns)[rows].min()), int(steps.unix_ns[rows].max())) if len(rows) else None


def telemetry_of(table: TelemetryColumns, reasons: tuple[str, ...], span: tuple[int, int] | None) -> Telemetry | None:
    if span is None:
        return None
    inside = (table.unix_ns >= span[0]) & (table.unix_ns <= span[1])
    if not inside.any():
        return None
    gpus = []
    for gpu in np.unique(table.gpu[inside & (table.gpu >= 0)]).tolist():
        whole = table.gpu == gpu
        rows = np.flatnonzero(inside & whole)
        shares = {reason: float(np.mean(table.throttle[rows] >> bit & 1)) for bit, reason in enumerate(reasons)}
        gpus.append(
            GpuTelemetry(
                index=gpu,
                power_w=_median(table.power_w[rows]),
                limit_w=_median(table.limit_w[rows]),
                sm_mhz=_median(table.sm_mhz[rows]),
                sm_mhz_max_seen=most(table.sm_mhz[whole]),
                temperature_c=most(table.temperature_c[rows]),
                utilization=_median(table.utilization[rows]),
                throttled={reason: share for reason, share in shares.items() if share},
            )
        )
    return Telemetry(tuple(gpus), len(np.unique(table.unix_ns[inside])), _median(table.load1[inside]))


def _median(values: F64) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None


def most(values: F64) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else None
