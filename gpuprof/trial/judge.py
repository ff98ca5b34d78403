"""Computes the gain of each fix from the mean steps of alternating processes, and decides on it.
Machines drift: clocks, neighbours, caches. So a process with a fix is compared with the unchanged processes just before
and just after it, weighted by proximity. The gain is the mean of the logarithms of these ratios; its 80 % interval is
Student's, and never narrower than the scatter of steps within the processes allows. Whether the gain is confirmed is
decided on the steps themselves (`decision`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuprof.record.base.quantiles import Z80
from gpuprof.trial.decision import Decision, decide
from gpuprof.trial.trial import MeasuredGain, Predicted, TimedProcess
from gpuprof.units import Convention, Ratio
from gpuprof.value_range import Range

T80: Convention[tuple[Ratio, ...]] = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383)
"""90th percentile of Student's t for 1, 2, … degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The result for the processes with the same fixes."""

    gain: MeasuredGain
    decision: Decision | None
    """None: undecided."""
    why: str
    """Why it is undecided; empty if it is decided."""


def judged(name: str, processes: Sequence[TimedProcess]) -> Judged | None:
    """Compares the processes of this name with unchanged ones; None if none of either was timed.
    Processes disturbed by other programs decide nothing; the gain is that of the others, if there are any.
    """
    quiet = [replace(one, step_ns=None) if one.is_disturbed else one for one in processes]
    gain = speedup(name, quiet) or speedup(name, processes)
    if gain is None:
        return None
    plain, fixed = _steps("", quiet), _steps(name, quiet)
    decision = decide(plain, fixed, gain)
    return Judged(gain, decision, "" if decision else _why(name, processes, plain, fixed))


def _steps(name: str, processes: Sequence[TimedProcess]) -> list[float]:
    return [float(one.step_ns) for one in processes if one.name == name and one.step_ns]


def _why(name: str, processes: Sequence[TimedProcess], plain: Sequence[float], fixed: Sequence[float]) -> str:
    """Why it is undecided."""
    timed = [one for one in processes if one.step_ns and one.name in ("", name)]
    full = sum(one.is_disturbed for one in timed)
    if full and (len(fixed) < 2 or len(plain) < 3):
        return f"other programs kept the CPUs full in {full} of {len(timed)} processes, which confirm nothing"
    if len(fixed) < 2:
        return "measured once"
    if len(plain) < 3:
        return "too few processes as it is"
    apart = max(plain) / min(plain) - 1
    return f"not decided in {len(fixed)} rounds: the step as it is differs by {100 * apart:.1f} % between processes"


def prediction_of(predicted: Range | None, found: MeasuredGain | None, decided: bool) -> Predicted | None:
    """Whether the measured gain agrees with the predicted one: their intervals overlap. None if that cannot be said."""
    if predicted is None:
        return None
    if found is None or found.low is None or found.high is None or not decided:
        return None
    if found.low > predicted.high:
        return "gained_more"
    return "gained_less" if found.high < predicted.low else "right"


def baseline_at(position: float, baselines: Sequence[tuple[int, float]]) -> float | None:
    """The unchanged mean step at a position in the order of processes, interpolated between its neighbours.
    baselines: (position, mean step in ns) of the unchanged processes. None if there are none.
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


def ratios(name: str, processes: Sequence[TimedProcess]) -> list[tuple[float, float]]:
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


def speedup(name: str, processes: Sequence[TimedProcess]) -> MeasuredGain | None:
    """The gain of these fixes: above 1 if they make the step shorter. A single process has no interval."""
    found = ratios(name, processes)
    if not found:
        return None
    logs = [log for log, _ in found]
    mean = math.fsum(logs) / len(logs)
    if len(logs) < 2:
        return MeasuredGain(None, math.exp(mean), None)
    freedom = len(logs) - 1
    deviation = math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / freedom)
    quantile = T80[freedom - 1] if freedom <= len(T80) else Z80
    width = quantile * deviation / math.sqrt(len(logs))
    own = Z80 * math.sqrt(math.fsum(error**2 for _, error in found)) / len(found)
    width = max(width, own)
    return MeasuredGain(math.exp(mean - width), math.exp(mean), math.exp(mean + width))


def _relative(process: TimedProcess) -> float:
    """Half the 80 % interval of a process's mean step, relative to it."""
    return (process.half_width_ns or 0) / process.step_ns if process.step_ns else 0.0
