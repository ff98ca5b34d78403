"""Energy of an unprofiled step, measured: by NVML's energy counter, else by the samples of its power.

The counter holds what the board took since the driver was loaded. Between two samples it is taken to rise evenly. What
the board takes without work is its power while the program has not begun its first step: with a context on the GPU and
clocks up, which is more than that of an empty board.
"""

from __future__ import annotations

import numpy as np

from gpuprof.calibration import energy as calibrated
from gpuprof.diagnosis.run_model import Energy
from gpuprof.tracefile.run import RunFolder, StepColumns
from gpuprof.tracefile.telemetry import TelemetryColumns
from gpuprof.tracefile.trace import ABSENT, I64, Mask
from gpuprof.units import Assumed, Samples, Seconds, Share

STAGES = ("baseline_free", "after")
"""Stages without a profiler in which steps run freely, the better one first."""
SHORTEST_S: Assumed[Seconds] = 1.0
"""A shorter stretch says nothing of a counter that is updated ten times a second."""
GOOD_S: Assumed[Seconds] = 5.0
"""The first stage that is as long is taken; else the longest."""
FEWEST_SAMPLES: Assumed[Samples] = 3
IDLE_QUANTILE: Assumed[Share] = 0.1
"""Quantile of the power samples before the first step: the idle power."""


def measured_energy(
    folder: RunFolder, tokens: float | None, step_ns: float | None = None, devices: int = 1
) -> Energy | None:
    """What a step of the diagnosed rank's GPU takes; None where no stretch was sampled for long enough.

    tokens: of a step and rank, without padding where that is known. step_ns: the step that the power is multiplied by,
    the mean of the stretch if None: a stretch holds work that is done once, which is no part of a step. devices: GPUs
    that the recorded process uses. A process that uses several takes their sum; where another number of GPUs was
    sampled, it is not known which are its own: None. With several ranks it is the mean over their GPUs.
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
    """(start, end, steps) of the unprofiled stretch that is measured, on the clock of the samples."""
    found = [one for stage in STAGES if (one := _span(folder.steps, folder.steps.rows(stage, folder.rank)))]
    long = [one for one in found if (one[1] - one[0]) / 1e9 >= GOOD_S]
    best = long[0] if long else max(found, key=lambda one: one[1] - one[0], default=None)
    return best if best is not None and (best[1] - best[0]) / 1e9 >= SHORTEST_S else None


def _span(steps: StepColumns, rows: I64) -> tuple[int, int, int] | None:
    """From the start of the first to the end of the last of some steps, none of them profiled; lines may be missing in
    between."""
    rows = rows[(steps.unix_ns[rows] != ABSENT) & ~steps.profiled[rows]]
    if not len(rows):
        return None
    rows = rows[np.argsort(steps.step[rows])]
    first, last = rows[0], rows[-1]
    count = int(steps.step[last] - steps.step[first]) + 1
    return int(steps.unix_ns[first] - steps.ns[first]), int(steps.unix_ns[last]), count


def _of_gpu(table: TelemetryColumns, mine: Mask, start: int, end: int) -> tuple[float, bool] | None:
    """(mean power in watts, whether the counter says so) of one GPU over a stretch; None where neither is known."""
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
    """Power before the first step, mean over the GPUs; None where it was not sampled."""
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
