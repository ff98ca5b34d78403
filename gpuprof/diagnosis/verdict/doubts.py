"""Reasons to doubt a verdict: what the recording lacks, or what it cannot explain.

Each doubt takes a share of the confidence. The shares are chosen so that confidence orders verdicts by how often they
are right; `python -m benchmarks.confidence` shows how far that holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuprof.calibration import doubts as calibrated
from gpuprof.costs.roofline import Roofline
from gpuprof.diagnosis.idle.long_copy import long_copy
from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.diagnosis.recorded.shares import Shares
from gpuprof.diagnosis.result.diagnosis import Steps
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.bound import PARTS, Bound
from gpuprof.replay.cpu_waits import CpuWaits
from gpuprof.timeline.cpu.silence import holes
from gpuprof.timeline.intervals import clip, union
from gpuprof.timeline.timeline import Timeline
from gpuprof.timeline.unit import Unit
from gpuprof.tracefile.trace import OP
from gpuprof.units import Assumed, Share

LEAST_DOUBT: Assumed[Share] = 0.05
"""Doubts that lower the confidence by less than this share are not mentioned."""
MOST_DOUBT: Assumed[Share] = 0.9
"""Largest share of the confidence that a single doubt takes."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """One reason not to be sure."""

    share: float
    """Share of the confidence that it takes, 0 to 1."""
    text: str
    """What is unknown, and what would settle it."""


def doubts(
    timeline: Timeline, busiest: Shares, steps: Steps, budget: Budget | None, roof: Roofline | None, bound: Bound,
    ranks: int = 1, waits: CpuWaits | None = None,
) -> tuple[Doubt, ...]:  # fmt: skip
    """Reasons to doubt a verdict, the weightiest first.

    busiest: the step of the busiest device without the profiler's cost; ranks: number of recorded ranks; waits: what
    the GPU waits for, if the steps were replayed.
    """
    found = [
        _unexplained(timeline, busiest), _start_up(timeline), _lone_copy(timeline, steps), _host_ends_early(timeline),
        _unlaunched(timeline), _few_steps(steps, timeline.unit),
        _different_steps(steps, budget, timeline.unit), _variation(budget, timeline.unit),
        _unmodelled(timeline, roof, bound),
        _missing_ranks(timeline, busiest, bound, ranks), _waits_for_launched(waits, bound),
    ]  # fmt: skip
    return tuple(
        sorted((one for one in found if one is not None and one.share >= LEAST_DOUBT), key=lambda one: -one.share)
    )


def remaining(found: Sequence[Doubt]) -> float:
    """The share of the confidence that the doubts leave."""
    return float(np.prod([1 - min(one.share, MOST_DOUBT) for one in found]))


def _unexplained(timeline: Timeline, busiest: Shares) -> Doubt | None:
    unknown = busiest.idle_ns.get("unknown", 0) / max(busiest.step_ns, 1)
    if unknown <= 0:
        return None
    text = f"{100 * unknown:.0f} % of the {timeline.unit} is unexplained waiting: record the calls of all threads"
    if silent := holes(timeline).total:
        whole = timeline.window[1] - timeline.window[0]
        said = f"nothing was recorded for {duration(silent)} of {duration(whole)}"
        text = f"{said}: record more {timeline.unit}s, or Python stacks"
    return Doubt(calibrated.PER_UNEXPLAINED.value * unknown, text)


def _start_up(timeline: Timeline) -> Doubt | None:
    found = timeline.start_up
    if found.share <= 0:
        return None
    text = (
        f"{100 * found.share:.0f} % of the window is the program's start ({found.parts[0][0]}): record later"
        f" {timeline.unit}s"
    )
    return Doubt(calibrated.PER_START_UP.value * found.share, text)


def _lone_copy(timeline: Timeline, steps: Steps) -> Doubt | None:
    """A single iteration that is mostly one copy: moving a model to the GPU looks like that, and happens once."""
    found = long_copy(timeline)
    if found is None or found.of > 1 or steps.unprofiled_ns is not None:  # the timed steps are just as long
        return None
    text = (
        f"one copy is {100 * found.share:.0f} % of the only recorded {timeline.unit}: record more, to see whether"
        " each has it"
    )
    return Doubt(calibrated.PER_LONE_COPY.value * found.share, text)


def _host_ends_early(timeline: Timeline) -> Doubt | None:
    """CPU events that end long before the window does: what the CPU did after that is unknown."""
    low, high = timeline.window
    ops, calls = timeline.trace.ops, timeline.trace.calls
    # The profiler may close an annotation itself when recording ends.
    ends = (ops.end_ns[(ops.kind == OP) & (ops.start_ns < high)], calls.end_ns[calls.start_ns < high])
    last = max(int(end.max(initial=low)) for end in ends)
    last = min(last, high)
    silent = (high - last) / max(high - low, 1)
    if silent <= calibrated.SILENT_END.value:
        return None
    gpu, members = timeline.trace.gpu, timeline.members
    works = clip(union(gpu.start_ns[members], gpu.end_ns[members]), last, high).total / max(high - low, 1)
    share = silent - works + calibrated.PER_SILENT.value * works
    at = f"the CPU's last event is at {100 * (1 - silent):.0f} % of the window"
    return Doubt(share, f"{at}: record whole iterations with CPU activity")


def _unlaunched(timeline: Timeline) -> Doubt | None:
    """GPU work whose launch was not recorded."""
    gpu, members = timeline.trace.gpu, timeline.members
    ns = (gpu.end_ns - gpu.start_ns)[members].clip(0).astype(np.float64)
    share = float(ns[timeline.links.call[members] < 0].sum()) / max(float(ns.sum()), 1.0)
    if share <= 0:
        return None
    text = f"{100 * share:.0f} % of the GPU's time has no recorded launch: record CPU and CUDA activities together"
    return Doubt(calibrated.PER_UNLAUNCHED.value * share, text)


def _few_steps(steps: Steps, unit: Unit) -> Doubt | None:
    if steps.source == "none":
        return Doubt(
            calibrated.NO_STEPS.value,
            f"no {unit}s were found: mark them with profiler.step(), or name them with --step",
        )
    return Doubt(calibrated.ONE_STEP.value, f"a single {unit} was recorded: record three") if steps.count == 1 else None


def _different_steps(steps: Steps, budget: Budget | None, unit: Unit) -> Doubt | None:
    """Recorded steps that differ, without a run that timed the usual step."""
    each = np.array(steps.each_ns, np.float64)
    if len(each) < 2 or (budget is not None and budget.source == "free"):
        return None
    low, median, high = np.percentile(each, (10, 50, 90))
    spread = float((high - low) / max(median, 1.0))
    if spread <= calibrated.STEPS_ALIKE.value:
        return None
    text = f"recorded {unit}s differ by {100 * spread:.0f} %: record a run with gpuprof trace, which times more of them"
    return Doubt(
        min(calibrated.PER_SPREAD.value * (spread - calibrated.STEPS_ALIKE.value), calibrated.MOST_SPREAD.value), text
    )


def _unmodelled(timeline: Timeline, roof: Roofline | None, bound: Bound) -> Doubt | None:
    """Kernels whose limit is unknown. In decoding it is known: kernels read the weights, whatever else they do."""
    if bound not in PARTS or (bound == "memory" and timeline.workload.decodes):
        return None
    if roof is None:
        return Doubt(
            calibrated.NO_CEILINGS.value, "the GPU's ceilings are not known, so its kernels' limits are guessed"
        )
    text = f"what limits {100 * roof.unmodelled_share:.0f} % of the GPU's time is not known: record shapes"
    return Doubt(calibrated.PER_UNMODELLED.value * roof.unmodelled_share, text)


def _missing_ranks(timeline: Timeline, busiest: Shares, bound: Bound, ranks: int) -> Doubt | None:
    """Possible waits for ranks that were not recorded; a verdict of communication already covers those."""
    world = timeline.trace.meta.world_size or 1
    if bound == "communication" or ranks >= world:
        return None
    share = busiest.communication_ns / max(busiest.step_ns, 1)
    missing = world - ranks
    text = (
        f"{missing} of {world} ranks were not recorded, and {100 * share:.0f} % of the {timeline.unit} is"
        " communication, which may be waiting for one of them: add their recordings"
    )
    return Doubt(calibrated.PER_MISSING_RANK.value * share * missing / world, text)


def _waits_for_launched(waits: CpuWaits | None, bound: Bound) -> Doubt | None:
    """The GPU waits for the CPU, but also for something that a faster CPU would not shorten."""
    if waits is None or bound != "host" or waits.launched_ns <= 0:
        return None
    share = waits.launched_ns / (waits.launched_ns + waits.cpu_ns)
    text = (
        f"{100 * share:.0f} % of the GPU's waiting is for work that is already launched, which a faster CPU does not"
        " start earlier: record all ranks and streams"
    )
    return Doubt(share, text)


def _variation(budget: Budget | None, unit: Unit) -> Doubt | None:
    """The part of the mean step that neither the usual step nor a measured cause explains."""
    if budget is None or budget.source != "free" or budget.mean_ns <= 0:
        return None
    share = abs(budget.residual_ns) / budget.mean_ns
    return Doubt(share, f"no cause was measured for {100 * share:.0f} % of the mean {unit}")
