"""What each step of a run is used for: a plan of stages, fitted to how long steps take and how many there will be.

The order matters: an unprofiled step can only be timed in a process in which no profiler has run yet (CUPTI leaves
10-35 % behind on launch-bound runs where it is not torn down), so the baseline comes before everything else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .free_run_length import MOST_STEPS
from .options import STEPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Iterations, Measured, Seconds, Steps


SETTLE: Assumed[Steps] = 5
"""Steps that allocate, compile and tune, and are like no later ones."""
SETTLE_S: Assumed[Seconds] = 2.0
LONGEST_SETTLE: Assumed[Steps] = 10
"""Short steps settle for this long, or this many steps: clocks rise in seconds, not in steps."""
WARM_UP: Assumed[Steps] = 2
"""Steps recorded and thrown away: the first under CUPTI pays for its start."""
STEPS_AFTER: Assumed[Steps] = 15
"""Steps timed after the windows, to see whether the run is as fast as before; the first few pay for the recording."""
BASELINES = ((2.0, 10), (10.0, 4), (float("inf"), 2))
"""(seconds a step, steps of each kind of baseline): enough to tell the spread, and under a minute for most runs.
Coarse on purpose: the ranks of one run must choose alike, each from its own clock."""
SAMPLED = ((0.05, 50), (0.25, 25), (1.0, 10), (5.0, 4), (float("inf"), 2))
"""(seconds a step, steps that are sampled), as coarse as BASELINES and for the same reason. One process alone goes on
until sampling.ENOUGH_S have passed."""
LONG_ITERATION_S: Assumed[Seconds] = 1.0
"""Iterations of a training on its own generations that are shorter are treated as any step."""
ITERATIONS = ((2.0, 6), (8.0, 3), (float("inf"), 2))
"""(seconds an iteration, iterations that are timed), as coarse as BASELINES."""
RECORDED_S: Measured[Seconds] = 1.0
"""Iterations that generate are recorded for this long, or one: their decode steps launch kernels without a break, and
two iterations of 1.2 s, their decode loops in part, stalled the training for 2.6 s (RLOO) and 3.3 s (online DPO, H100).
"""
LONG_TIMED_S: Assumed[Seconds] = 16.0
"""Long iterations are timed for this long at most, however well their mean is known by then: with four of 4 s the
verdict comes within a minute."""
LONG_SETTLE: Assumed[Iterations] = 2
"""Iterations that settle, of long ones."""
WINDOW_S: Assumed[Seconds] = 60.0
"""A window does not record for longer than this if fewer steps will do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps of each stage, in the order in which they come."""

    settle: int = SETTLE
    baseline: int = BASELINES[0][1]
    """Steps timed free-running, and again as many each closed by a synchronisation."""
    sample: int = SAMPLED[0][1]
    """Steps in which Python's stacks are sampled, without a profiler."""
    samples_late: bool = True
    """Whether they come after the windows: of a training that does not say how long it is, so that a short one is
    recorded."""
    warm_up: int = WARM_UP
    trace: int = STEPS
    stacks: int = 0
    memory: int = 0
    synchronised: int | None = None
    """Of the baseline's, the steps closed by a synchronisation; None: the same number as free-running ones."""

    def stages(self, first_window: str = "trace") -> list[tuple[str, int]]:
        """(stage, steps) without those that have none. first_window: the stage of the steps in `trace`."""
        later = [(name, n) for name in ("stacks", "memory") if (n := getattr(self, name))]
        windows = [("warmup", self.warm_up), (first_window, self.trace)] if self.trace else []
        for window in later:
            windows += [("warmup", 1), window]
        stages = [
            ("settle", self.settle),
            ("baseline_free", self.baseline),
            ("baseline_sync", self.baseline if self.synchronised is None else self.synchronised),
            *([] if self.samples_late else [("sampling", self.sample)]),
            *windows,
            *([("sampling", self.sample)] if self.samples_late else []),
            ("after", STEPS_AFTER),
        ]
        return [(name, n) for name, n in stages if n > 0]

    def needs(self) -> int:
        """Steps until the last window closes."""
        return sum(n for name, n in self.stages() if name != "after" and not (name == "sampling" and self.samples_late))


def plan(
    *,
    settle: int | None = None,
    baseline: int | None = None,
    steps: int = STEPS,
    stacks: int = 0,
    memory: int = 0,
    sampling: bool = True,
    step_s: float | None = None,
    total: int | None = None,
) -> Plan:
    """The plan for a run, as far as is known.

    settle, baseline: as the user wants them, None for what suits. sampling: whether stacks are sampled. step_s: seconds
    that a step takes, once that is known. total: steps that the training will take; a short one gets less of everything
    rather than nothing.
    """
    if baseline is None:
        baseline = next(n for limit, n in BASELINES if (step_s or 0) < limit)
        chosen_baseline = False
    else:
        chosen_baseline = True
    sample = next(n for limit, n in SAMPLED if (step_s or 0) < limit) if sampling else 0
    found = Plan(
        SETTLE if settle is None else settle, baseline, sample, total is None, WARM_UP, steps, stacks, memory
    )  # fmt: skip
    if step_s:
        most = max(1, int(WINDOW_S / step_s))
        found = replace(found, trace=min(steps, most), stacks=min(stacks, most), memory=min(memory, most))
    if total is not None:
        # The last step is often a smaller batch.
        found = _shrink(found, total - 1, keep_settle=settle is not None, keep_baseline=chosen_baseline)
    return found


def of_iterations(found: Plan, iteration_s: float, steps: int, total: int | None = None) -> Plan:
    """The plan for a training whose iterations generate what the next `steps` optimizer steps train on.

    Stages consist of whole iterations. Long ones get few of each, so that the verdict comes within a minute where one
    takes 4 s: generation waits for the GPU at every token, so steps that end in a synchronisation are no different.
    found: the plan without regard to the training's end. iteration_s: seconds of one. total: steps that are left.
    """
    found = replace(found, samples_late=total is None)
    if iteration_s >= LONG_ITERATION_S or steps > 1:
        baseline = next(timed for limit, timed in ITERATIONS if iteration_s < limit)
        found = replace(
            found, baseline=baseline * steps, synchronised=0, sample=min(found.sample, 1) * steps, warm_up=1,
            trace=steps if found.trace else 0,
            stacks=min(found.stacks, steps), memory=min(found.memory, steps),
        )  # fmt: skip
    elif found.trace == STEPS and iteration_s > 0:  # no other number was asked for
        found = replace(found, trace=min(STEPS, max(int(RECORDED_S / iteration_s), 1)))
    return found if total is None else _shrink(found, total - 1, keep_settle=False, keep_baseline=False)


def iterations_left(iteration_s: float, timed_s: float) -> int:
    """Iterations that may still be timed after `timed_s` seconds of them, where they are long; the plan's are timed in
    any case."""
    return max(int((LONG_TIMED_S - timed_s) / iteration_s), 0) if iteration_s > LONG_ITERATION_S else MOST_STEPS


_FLOORS: Assumed[dict[str, Steps]] = {
    "sample": 0,
    "memory": 0,
    "stacks": 0,
    "baseline": 1,
    "settle": 1,
    "warm_up": 1,
    "trace": 1,
}
"""The least of each, in the order in which they give way where they are equally long."""


def _shrink(found: Plan, room: int, keep_settle: bool, keep_baseline: bool) -> Plan:
    """The plan within `room` steps, if that can be done: sampling gives way first, then the longest stage."""
    fixed = {"settle": keep_settle, "baseline": keep_baseline}
    while found.needs() > room:
        able = [name for name, floor in _FLOORS.items() if getattr(found, name) > floor and not fixed.get(name)]
        if not able:
            return found
        longest = "sample" if "sample" in able else max(able, key=lambda name: getattr(found, name))
        found = replace(found, **{longest: getattr(found, longest) - 1})
    return found
