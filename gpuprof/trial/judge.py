"""From the mean steps of processes that took turns to the gain of each fix.

Machines drift: clocks, neighbours, caches. So a process with a fix is compared with those without it that ran just
before and just after, weighted by how near they are. Of the logarithms of these ratios the mean is the gain; its 80 %
interval is Student's, and never narrower than what the scatter of the processes' own steps allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuprof.trial.trial import Interval, Process, Status

T80 = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383)
"""90th percentile of Student's t for 1, 2, … degrees of freedom."""
Z80 = 1.2816
"""The same of the normal distribution."""


def baseline_at(position: float, baselines: Sequence[tuple[int, float]]) -> float | None:
    """The mean step without a fix at a position in the order of processes, interpolated between its neighbours.

    baselines: (position, mean step in ns) of the processes without a fix. None where there are none.
    """
    before = max((one for one in baselines if one[0] <= position), default=None)
    after = min((one for one in baselines if one[0] >= position), default=None)
    if before is None or after is None:
        only = before or after
        return None if only is None else only[1]
    if before[0] == after[0]:
        return before[1]
    part = (position - before[0]) / (after[0] - before[0])
    return math.exp((1 - part) * math.log(before[1]) + part * math.log(after[1]))


def ratios(name: str, processes: Sequence[Process]) -> list[tuple[float, float]]:
    """(logarithm of the speedup, its standard error from the steps' own scatter) of each process with these fixes."""
    plain = [(i, float(p.step_ns)) for i, p in enumerate(processes) if not p.name and p.step_ns]
    widths = [_relative(p) for p in processes if not p.name and p.step_ns]
    own = math.sqrt(sum(w * w for w in widths) / len(widths) / 2) if widths else 0.0
    found = []
    for i, process in enumerate(processes):
        base = baseline_at(i, plain) if process.name == name and process.step_ns else None
        if base is not None and process.step_ns:
            found.append((math.log(base / process.step_ns), math.hypot(_relative(process), own) / Z80))
    return found


def speedup(name: str, processes: Sequence[Process]) -> Interval | None:
    """The gain of these fixes: above 1 where they make the step shorter. One process has no interval."""
    found = ratios(name, processes)
    if not found:
        return None
    logs = [log for log, _ in found]
    mean = math.fsum(logs) / len(logs)
    if len(logs) < 2:
        return Interval(None, math.exp(mean), None)
    freedom = len(logs) - 1
    deviation = math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / freedom)
    quantile = T80[freedom - 1] if freedom <= len(T80) else Z80
    width = quantile * deviation / math.sqrt(len(logs))
    own = Z80 * math.sqrt(math.fsum(error**2 for _, error in found)) / len(found)
    width = max(width, own)
    return Interval(math.exp(mean - width), math.exp(mean), math.exp(mean + width))


def status_of(gain: Interval) -> Status:
    """What an interval says: that of a single process confirms nothing."""
    if gain.low is None or gain.high is None:
        return "unconfirmed"
    if gain.low > 1:
        return "confirmed"
    return "slower" if gain.high < 1 else "no_difference"


def _relative(process: Process) -> float:
    """Half the 80 % interval of a process's mean step, as a share of it."""
    return (process.half_width_ns or 0) / process.step_ns if process.step_ns else 0.0
