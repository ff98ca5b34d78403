"""The mean step of timed processes over the steps that the recorded process timed, too.

Where lengths differ, the first steps meet new ones and take longer, so the mean of steps 7 to 36 is not that of steps 6
to 75. Programs draw their batches from a seed: step 24 of one process has the samples of step 24 of the next. So over
the steps that both took, free-running and without a profiler, timed processes are compared with the recorded one.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from gpuprof.tracefile.run_folder.run import read_run
from scenarios.catalogue import Scenario
from scenarios.support.run import ALONE, DRAINED, SETTLE

FEWEST, MANY = 5, 20
"""Fewest steps that both took; and how many are enough for their mean to show what a fix gains."""
FREE = "baseline_free"


@dataclass(frozen=True)
class SameSteps:
    """Milliseconds."""

    first: int
    last: int
    recorded_ms: float
    """Mean of the recorded process."""
    timed_ms: tuple[float, ...]
    """Mean of each timed process."""
    count: int
    """How many steps that is."""

    def of_stretch(self, mean_ms: float) -> tuple[float, float]:
        """What the timed processes, fastest and slowest, would take over a stretch whose mean is this in the recorded
        process."""
        return mean_ms * min(self.timed_ms) / self.recorded_ms, mean_ms * max(self.timed_ms) / self.recorded_ms


def same_steps(entry: Scenario) -> SameSteps | None:
    """The comparison for the unchanged program; None if no recording is kept, steps were not timed one by one, or few
    are common."""
    if entry.recording is None or entry.truth is None or entry.free is None:
        return None
    steps = read_run(entry.recording).steps
    rows = steps.rows(FREE, 0)
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
    return SameSteps(common[0], common[-1], fmean(own[step] for step in common), means, len(common))


def as_timed(entry: Scenario, folder: Path) -> Path | None:
    """Its recording, copied into `folder`, as if only the steps that were timed had run freely: in the first steps,
    which meet new lengths, a fix gains something else than later. None where steps do not differ, or fewer than MANY
    are common."""
    found = same_steps(entry) if entry.steps_differ else None
    if found is None or found.count < MANY or entry.recording is None:
        return None
    target = shutil.copytree(entry.recording, folder / entry.name)
    file, own = target / "steps.jsonl", target / "rank0.json"
    steps = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    free = [step for step in steps if step["stage"] == FREE and found.first <= step["step"] <= found.last]
    others = [step for step in steps if step["stage"] not in (FREE, "after")]
    file.write_text("".join(json.dumps(step) + "\n" for step in sorted(free + others, key=_number)), encoding="utf-8")
    rank = json.loads(own.read_text(encoding="utf-8"))
    rank["stages"] = [stage for stage in rank["stages"] if stage["stage"] != "after"]
    for stage in rank["stages"]:
        if stage["stage"] == FREE:
            stage |= {"first_step": found.first, "steps": len(free), "ns": sum(step["ns"] for step in free)}
    own.write_text(json.dumps(rank), encoding="utf-8")
    return target


def _number(step: dict) -> int:
    return step["step"]
