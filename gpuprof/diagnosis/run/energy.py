"""Measured energy of an unprofiled step: from NVML's energy counter, or else from power samples.

The counter holds the board's energy since the driver was loaded, and is interpolated linearly between samples. Idle
power is measured before the program's first step: a context exists and clocks are up, so it is higher than the power of
an unused board.
"""

from __future__ import annotations

import numpy as np

from gpuprof.calibration import energy as calibrated
from gpuprof.diagnosis.result.run_model import Energy
from gpuprof.tracefile.run_folder.run import RunFolder, StepColumns
from gpuprof.tracefile.run_folder.telemetry import TelemetryColumns
from gpuprof.tracefile.trace import ABSENT, I64, Mask
from gpuprof.units import Assumed, Samples, Seconds, Share

STAGES = ("baseline_free", "after")
"""Stages with free-running steps and no profiler, preferred first."""
SHORTEST_METERED_S: Assumed[Seconds] = 1.0
"""Shortest usable stretch, s: the counter is updated ten times a second."""
GOOD_S: Assumed[Seconds] = 5.0
"""The first stage of at least this length, s, is used; if there is none, the longest."""
FEWEST_SAMPLES: Assumed[Samples] = 3
IDLE_QUANTILE: Assumed[Share] = 0.1
"""Quantile of the power samples before the first step: the idle power."""


def measured_energy(
    folder: RunFolder, tokens: float | None, step_ns: float | None = None, devices: int = 1
) -> Energy | None:
    """Energy of a step on the diagnosed rank's GPU; None if no stretch was sampled for long enough.

    tokens: per step and rank, without padding if that is known. step_ns: step time to multiply the power by; None: the
    mean of the stretch, which may include one-off work that is no part of a step. devices: GPUs that the recorded
    process uses. For a process with several GPUs the sum is returned, or None if a different number of GPUs was
    sampled, since its own cannot be identified. With several ranks it is the mean over their GPUs.
    """
    found = _stretch(folder)
    if found is None:
        return None
    start, end, steps = found
    together = devices > 1 and len(folder.ranks) <= 1
    table = folder.seen_telemetry if together else folder.telemetry
    gpus = np.unique(table.gpu[table.gpu >= 0]).tolist()
    each = [one for gpu in gpus if (one := _of_gpu(table, table.gpu == gpu, start, end)) is not None]
    if not each or (together and not len(each) == len(gpus) == devices):
        return None
    counted = all(one[1] for one in each)
    boards = devices if together else 1
    power = boards * float(np.mean([one[0] for one in each]))
    idle = _idle_w(folder, table, gpus)
    idle = None if idle is None else boards * idle
    seconds = (end - start) / 1e9
    step_s = step_ns / 1e9 if step_ns else seconds / steps
    unsure = calibrated.SENSOR.value + (calibrated.UPDATE_S.value if counted else calibrated.AVERAGED_S.value) / seconds
    joules = power * step_s
    work = None if idle is None else max(power - idle, 0.0) * step_s
    return Energy(
        source="counter" if counted else "samples",
        gpus=len(each),
        steps=steps,
        ns=end - start,
        power_w=power,
        idle_w=idle,
        step_j=joules,
        step_low_j=joules * max(1 - unsure, 0.0),
        step_high_j=joules * (1 + unsure),
        work_j=work,
        token_j=joules / tokens if tokens else None,
        work_token_j=work / tokens if tokens and work is not None else None,
        boards=boards,
    )


def _stretch(folder: RunFolder) -> tuple[int, int, int] | None:
    """(start, end, steps) of the unprofiled stretch to measure, on the samples' clock."""
    found = [one for stage in STAGES if (one := _span(folder.steps, folder.steps.rows(stage, folder.rank)))]
    long = [one for one in found if (one[1] - one[0]) / 1e9 >= GOOD_S]
    best = long[0] if long else max(found, key=lambda one: one[1] - one[0], default=None)
    return best if best is not None and (best[1] - best[0]) / 1e9 >= SHORTEST_METERED_S else None


def _span(steps: StepColumns, rows: I64) -> tuple[int, int, int] | None:
    """(start, end, steps) from the first to the last of the unprofiled steps among `rows`; steps in between may be
    missing."""
    rows = rows[(steps.unix_ns[rows] != ABSENT) & ~steps.profiled[rows]]
    if not len(rows):
        return None
    rows = rows[np.argsort(steps.step[rows])]
    first, last = rows[0], rows[-1]
    count = int(steps.step[last] - steps.step[first]) + 1
    return int(steps.unix_ns[first] - steps.ns[first]), int(steps.unix_ns[last]), count


def _of_gpu(table: TelemetryColumns, mine: Mask, start: int, end: int) -> tuple[float, bool] | None:
    """(mean power in watts, whether from the counter) of one GPU over a stretch; None if neither source has it."""
    for values, is_counter in ((table.energy_j, True), (table.power_w, False)):
        rows = np.flatnonzero(mine & np.isfinite(values))
        inside = rows[(table.unix_ns[rows] >= start) & (table.unix_ns[rows] <= end)]
        if len(inside) < FEWEST_SAMPLES:
            continue
        if not is_counter:
            return float(np.mean(values[inside])), False
        rows = rows[np.argsort(table.unix_ns[rows], kind="stable")]
        times, joules = table.unix_ns[rows], values[rows]
        low, high = max(start, int(times[0])), min(end, int(times[-1]))
        took = np.interp([low, high], times, joules)
        if high > low and took[1] > took[0]:  # a driver that was loaded again counts from 0
            return float(took[1] - took[0]) / ((high - low) / 1e9), True
    return None


def _idle_w(folder: RunFolder, table: TelemetryColumns, gpus: list[int]) -> float | None:
    """Power before the first step, mean over the GPUs, W; None if it was not sampled."""
    steps = folder.steps
    first = np.flatnonzero((steps.rank == folder.rank) & (steps.step == 1) & (steps.unix_ns != ABSENT))
    if not len(first):
        return None
    begun = int((steps.unix_ns - steps.ns)[first[0]])
    found = []
    for gpu in gpus:
        rows = (table.gpu == gpu) & (table.unix_ns < begun) & np.isfinite(table.power_w)
        rows &= ~(table.utilization > 0)
        if rows.any():
            found.append(float(np.quantile(table.power_w[rows], IDLE_QUANTILE)))
    return float(np.mean(found)) if len(found) == len(gpus) else None
