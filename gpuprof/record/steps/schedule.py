"""What each step of a run is used for: a plan of stages, adapted to the duration and number of steps.
The order matters: an unprofiled step can only be timed in a process in which no profiler has run yet (unless CUPTI is
torn down, launch-bound steps stay 10-35 % slower), so the baseline comes before everything else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..base.options import STEPS
from .free_run_length import MOST_TIMED_STEPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Convention, Iterations, Measured, Seconds, Steps


SETTLE: Assumed[Steps] = 5
"""First steps, which allocate, compile and autotune, and are unlike later ones."""
SETTLE_S: Assumed[Seconds] = 2.0
LONGEST_SETTLE: Assumed[Steps] = 10
"""Short steps settle for this long, or this many steps: GPU clocks rise over seconds, not steps."""
WATCHED: Convention[Steps] = 3
"""The last of the settling steps, which are watched (`regular_steps`)."""
WARM_UP: Assumed[Steps] = 2
"""Steps recorded and discarded: the first one includes the start of CUPTI."""
STEPS_AFTER: Assumed[Steps] = 15
"""Steps timed after the windows, to see whether the run is as fast as before; the first few are still slower."""
BASELINES = ((2.0, 10), (10.0, 4), (float("inf"), 2))
"""(seconds a step, steps of each kind of baseline): enough to see the spread, and under a minute for most runs.
Coarse on purpose: the ranks of one run must choose alike, each from its own clock."""
SAMPLED = ((0.05, 50), (0.25, 25), (1.0, 10), (5.0, 4), (float("inf"), 2))
"""(seconds a step, steps that are sampled), as coarse as BASELINES and for the same reason. A single process continues
until sampling.SAMPLED_S have passed."""
LONG_ITERATION_S: Assumed[Seconds] = 1.0
"""RL iterations shorter than this are treated like ordinary steps."""
ITERATIONS = ((2.0, 6), (8.0, 3), (float("inf"), 2))
"""(seconds an iteration, iterations that are timed), as coarse as BASELINES."""
RECORDED_S: Measured[Seconds] = 1.0
"""Iterations that generate are recorded for this long, or one iteration: decoding launches kernels without a break.
Two iterations of 1.2 s, with only parts of their decode loops recorded, stalled the training for 2.6 s (RLOO) and 3.3 s
(online DPO, H100)."""
LONG_TIMED_S: Assumed[Seconds] = 16.0
"""Long iterations are timed for at most this long, even if their mean is not known well: with four of 4 s the verdict
comes within a minute."""
LONG_SETTLE: Assumed[Iterations] = 2
"""Settling iterations where iterations are long."""
WINDOW_S: Assumed[Seconds] = 60.0
"""A window records for at most this long, if fewer steps suffice."""


def kept_steps(settle: int | None) -> int:
    """How many of the settling steps that the user requested come once the training is known."""
    return WATCHED if settle is not None and settle > WATCHED + 1 else 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps of each stage, in the order in which they come."""

    settle: int = SETTLE
    baseline: int = BASELINES[0][1]
    """Steps timed free-running; the same number is timed with a synchronisation after each."""
    sample: int = SAMPLED[0][1]
    """Steps in which Python's stacks are sampled, without a profiler."""
    samples_late: bool = True
    """Whether they come after the windows: used where the training's length is unknown, so that a short one is still
    recorded."""
    warm_up: int = WARM_UP
    trace: int = STEPS
    stacks: int = 0
    memory: int = 0
    synchronised: int | None = None
    """Baseline steps with a synchronisation after each; None: the same number as free-running ones."""

    def stages(self, first_window: str = "trace") -> list[tuple[str, int]]:
        """(stage, steps) of all stages that have steps. first_window: the stage of the steps in `trace`."""
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
    """The plan for a run, from what is known of it.
    settle, baseline: the user's numbers, None: automatic. sampling: whether stacks are sampled. step_s: seconds per
    step, once known. total: steps that the training will take; in a short training every stage gets fewer steps.
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
    """The plan for a training whose iterations generate what the next `steps` optimizer steps train on (RL).
    Stages consist of whole iterations. Long iterations are timed few times, so that with 4 s each the verdict comes
    within a minute. They need no synchronised steps: generation waits for the GPU at every token anyway.
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
    """Further iterations that may be timed after `timed_s` seconds, if iterations are long; those of the plan are timed
    in any case."""
    return max(int((LONG_TIMED_S - timed_s) / iteration_s), 0) if iteration_s > LONG_ITERATION_S else MOST_TIMED_STEPS


_FLOORS: Assumed[dict[str, Steps]] = {
    "sample": 0,
    "memory": 0,
    "stacks": 0,
    "baseline": 1,
    "settle": 1,
    "warm_up": 1,
    "trace": 1,
}
"""Fewest steps of each stage; of equally long stages the one listed first is shortened first."""


def _shrink(found: Plan, room: int, keep_settle: bool, keep_baseline: bool) -> Plan:
    """The plan shortened to `room` steps, if possible: sampling is shortened first, then the longest stage."""
    fixed = {"settle": keep_settle, "baseline": keep_baseline}
    while found.needs() > room:
        able = [name for name, floor in _FLOORS.items() if getattr(found, name) > floor and not fixed.get(name)]
        if not able:
            return found
        longest = "sample" if "sample" in able else max(able, key=lambda name: getattr(found, name))
        found = replace(found, **{longest: getattr(found, longest) - 1})
    return found
