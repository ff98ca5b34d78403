"""The mean step of timed processes over the steps that the recorded process timed, too.

Where lengths differ, the first steps meet new ones and take longer, so the mean of steps 7 to 36 is not that of steps 6
to 75. Programs draw their batches from a seed: step 24 of one process has the samples of step 24 of the next. So over
the steps that both took, free-running and without a profiler, timed processes are compared with the recorded one.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from gpuprof.tracefile.run import read_run
from scenarios.catalogue import Scenario
from scenarios.support.run import ALONE, DRAINED, SETTLE

FEWEST = 5
"""Steps that both took, at least."""


@dataclass(frozen=True)
class SameSteps:
    """Milliseconds."""

    first: int
    last: int
    recorded_ms: float
    """Mean of the recorded process."""
    timed_ms: tuple[float, ...]
    """Mean of each timed process."""

    def of_stretch(self, mean_ms: float) -> tuple[float, float]:
        """What the timed processes, fastest and slowest, would take over a stretch whose mean is this in the recorded
        process."""
        return mean_ms * min(self.timed_ms) / self.recorded_ms, mean_ms * max(self.timed_ms) / self.recorded_ms


def same_steps(entry: Scenario) -> SameSteps | None:
    """Of the program as it is; None where no recording is kept, steps were not timed one by one, or few are common."""
    if entry.recording is None or entry.truth is None or entry.free is None:
        return None
    steps = read_run(entry.recording).steps
    rows = steps.rows("baseline_free", 0)
    own = dict(zip(steps.step[rows].tolist(), (steps.ns[rows] / 1e6).tolist(), strict=True))
    begins = SETTLE - ALONE + (DRAINED if entry.drain is None else entry.drain) + 1
    timed = [
        dict(enumerate(process["free_each_ms"], begins))
        for process in entry.truth["processes"]
        if process["fix"] == "" and process.get("free_each_ms")
    ]
    common = sorted(set(own).intersection(*timed)) if timed else []
    if len(common) < FEWEST:
        return None
    means = tuple(fmean(process[step] for step in common) for process in timed)
    return SameSteps(common[0], common[-1], fmean(own[step] for step in common), means)
