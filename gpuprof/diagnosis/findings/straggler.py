"""One rank that the others wait for. Found in several ranks' recordings together, not in one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuprof.calibration import noise as noise_calibrated
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import LEAST_GAIN, MARKED_GAIN, SEVERE_GAIN, Page
from gpuprof.diagnosis.detect.ranks.slow_rank import most_of_excess
from gpuprof.diagnosis.result.finding_model import Evidence, Finding
from gpuprof.diagnosis.result.fix import Fix, as_fix, call
from gpuprof.diagnosis.sentences import duration
from gpuprof.value_range import Range

if TYPE_CHECKING:
    from gpuprof.diagnosis.detect.ranks.gang import Gang, RankExcess

PAGE = Page(
    id="straggler",
    title="The other ranks wait for one rank",
    means="""
The ranks of a training exchange gradients or weights in every step, and no exchange ends before the last rank has
arrived. If one rank is slower than the others, all of them take as long as it does. In the other ranks' recordings
that time looks like communication, but a faster network would not shorten it.
""",
    detected="""
The collectives of all ranks are matched by process group, order and size, sends with their receives. Their end times
differ only by clock offsets, and their shortest duration is the transfer, because the rank that arrives last does not
wait. All ranks are then replayed together. That must reproduce the recorded step to 2 %; otherwise nothing is claimed.

Then the job is replayed with one thing changed at a time: one rank as fast as those that do the same work, one host,
one tensor-parallel group, pipeline stages of equal work, batches of equal work, one link as fast as others of its
kind. The smallest of these that explains 80 % of the largest gain is the culprit, if the step gets 5 % shorter (6 % if
two steps were recorded, 9 % if one), because steps of one program differ by less. One rank is a straggler if it
also arrives last at two thirds of the collectives where others wait noticeably (20 µs), or if it is slower than every
other rank in each of at least three steps. Of two ranks whose steps merely scatter, each arrives last at half of them.

The straggler's additional work is found by comparing its work, by phase and op, with the median of the other ranks.
""",
    gain="""
The joint replay with this rank's work as long as the mean of the ranks that do the same work; waits follow from that.
In a pipeline this can be less than the next slowest rank's step suggests.
""",
    wrong="""
If slowness moves from rank to rank, no rank is a straggler though all of them wait. The summary then says that
batches differ in work (`uneven_batches`), and whether their length is the reason: with longer batches forward and
backward passes take longer together, and `job.lengths_share` is the share of the differences that both have in common.
Sort or pack batches by length, so that ranks get equal work in each step. A slow host, tensor-parallel group, pipeline
stage or link is named in the same way, because no rank in it is slow by itself.

A few recorded steps may show a rank that is slow only now and then (a checkpoint, a garbage collection). If the
recording of a rank is missing, waiting for it cannot be distinguished from transfer.
""",
)


def find_straggler(gang: Gang) -> Finding | None:
    """The finding, if one rank is slow and the step gets shorter when it is as fast as the others. The step with the
    fix is as uncertain as the step of all ranks. In the gain, their ratio, the errors that both share cancel: how well
    the step was timed, and what recording cost all ranks alike. What remains is the difference between the cost of
    recording on the slow rank and on the others, from the intervals of their own steps, and the noise between
    processes.
    """
    if gang.slow is None or gang.step_ns is None or gang.without_ns is None:
        return None
    slow = gang.ranks[gang.slow]
    expected = min(gang.without_ns, gang.step_ns)
    if expected <= 0 or gang.step_ns / expected < LEAST_GAIN:
        return None
    low, high = (
        expected
        * math.exp(sign * math.hypot(math.log1p(noise_calibrated.PROCESS.value), math.log(bound / gang.step_ns)))
        for sign, bound in ((-1, gang.low_ns or gang.step_ns), (1, gang.high_ns or gang.step_ns))
    )
    gain, apart = gang.step_ns / expected, [math.log(factor) for factor in gang.profiled]
    less, more = (
        gain
        * math.exp(
            sign * math.hypot(math.log1p(noise_calibrated.PROCESS.value), max(0.0, *(sign * one for one in apart)))
        )
        for sign in (-1, 1)
    )
    speedup, fix = Range(less, gain, more), _fix(gang, slow.rank)
    return Finding(
        id=PAGE.id,
        title=f"rank {slow.rank} as fast as the others",
        severity="high" if speedup.expected >= SEVERE_GAIN else "medium" if speedup.expected >= MARKED_GAIN else "low",
        evidence=(_waits(gang), *(_more(slow.rank, one) for one in most_of_excess(gang))),
        fix=str(fix),
        fix_lines=fix.lines,
        settings=fix.settings,
        step_ns=Range(round(low), round(expected), round(high)),
        speedup=speedup,
    )


def _waits(gang: Gang) -> Evidence:
    slow = gang.ranks[gang.slow or 0]
    waits = sorted((r.waiting_ns or 0 for i, r in enumerate(gang.ranks) if i != gang.slow))
    return Evidence(
        f"rank {slow.rank} needs {duration(slow.pace_ns or 0)} a step on its own, the next slowest"
        f" {duration(gang.next_pace_ns or 0)}; the others wait {duration(waits[len(waits) // 2])} a step;"
        f" it arrives last at"
        f" {100 * (slow.late_share or 0):.0f} % of the collectives with waiting"
    )


def _more(rank: int, one: RankExcess) -> Evidence:
    doing = one.doing
    where = f"rank {rank}: {doing.frame or doing.what}"
    text = f"{duration(one.ns)} a step more than the other ranks: {doing.what}, {doing.phase}"
    if doing.longest_ns:
        text += f"; shown: its longest stretch, {duration(doing.longest_ns)}"
    return Evidence(text, doing.start_ns, doing.longest_ns, where)


def _fix(gang: Gang, rank: int) -> Fix:
    first = next(iter(most_of_excess(gang)), None)
    doing = first.doing if first else None
    place = f" ({doing.frame or doing.what}, {doing.phase})" if doing else ""
    if gang.excess_bound == "input":
        return (
            as_fix(f"Give rank {rank} batches as cheap as those of the others, or more workers: ")
            + call("DataLoader", ..., num_workers=8).otherwise()
        )
    if gang.excess_bound == "transfer":
        pinned = call("DataLoader", ..., pin_memory=True) + ", non_blocking=True"
        return f"Copy on rank {rank}{place} from pinned memory: " + pinned
    if gang.excess_bound == "device":
        return as_fix(
            f"Give rank {rank} no more tokens a step than the others (length-grouped batches); if they are equal its"
            " GPU is slower: nvidia-smi -q -d PERFORMANCE,CLOCK on its machine"
        )
    return as_fix(
        f"Remove from rank {rank} what only this rank does in every step{place}: log, evaluate and save less"
        f" often or in another"
        " thread; if all ranks run the same code its CPU is slower or busy: top, taskset"
    )


FINDING = Declaration(
    page=PAGE,
    across_ranks=find_straggler,
    lowers=("later_ranks",),
    synonyms=("slow_rank", "stragglers", "imbalance", "load_imbalance"),
    titles=("as_fast_as_the_others", "rank_as_fast_as_the_others"),
)
