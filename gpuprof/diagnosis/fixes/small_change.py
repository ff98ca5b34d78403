"""Why a fix that changes the step is ruled out: it changes too little, or its effect is too uncertain."""

from __future__ import annotations

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.proposal import NEGLIGIBLE_CHANGE, Proposal
from gpuprof.diagnosis.sentences import duration
from gpuprof.units import Assumed, Ratio, Share
from gpuprof.value_range import Range

SAME_WORK: Assumed[Share] = 0.01
"""Factors of work that differ by less than this count as equal."""
GAIN_PER_REMOVED_TIME: Assumed[Ratio] = 2.0
"""If the step gets shorter by more than this multiple of the removed time, waits disappear, too."""


def small_change(case: Analysis, proposal: Proposal, gain: Range) -> str:
    """`takes 0.003 ms of GPU time off a step of 288 ms, under 1 %`; for a larger batch, how much longer its step is."""
    if abs(proposal.work - 1) > SAME_WORK:
        longer = proposal.work / gain.expected
        return f"{proposal.work:.3g} times the work takes {longer:.3g} times as long"
    named = tuple(zip(_taken_off(case, proposal), ("GPU", "CPU"), strict=True))
    takes = [f"{duration(ns)} of {name} time" for ns, name in named if ns > 0]
    added = " and ".join(
        f"{duration(-ns)} of {name} time" for ns, name in named if ns < -NEGLIGIBLE_CHANGE * case.mean_ns
    )
    change = 1 - 1 / gain.expected
    wait_ns = change * case.shown_ns - sum(ns for ns, _ in named if ns > 0)
    only_taken = not (added or proposal.lumps or proposal.loader or proposal.least_ns)
    if (
        takes
        and only_taken
        and change >= NEGLIGIBLE_CHANGE
        and wait_ns > (GAIN_PER_REMOVED_TIME - 1) * (change * case.shown_ns - wait_ns)
    ):
        takes.append(f"a wait of {duration(wait_ns)}")
    taken = " and ".join((", ".join(takes[:-1]), takes[-1]) if len(takes) > 1 else takes)
    step = f"{case.unit.a} of {duration(case.shown_ns)}"
    if taken and only_taken:  # the usual step is a median: less work may shift which of the steps that is
        change = max(change, 0.0)
    if taken and added:
        return f"takes {taken} off {step} and adds {added}, which {_becomes('it', change)}"
    if taken or added:
        return f"{f'takes {taken} off' if taken else f'adds {added} to'} {step}, which {_becomes('it', change)}"
    return _becomes(step, change)


def _becomes(step: str, change: float) -> str:
    """`shortens it by 4.7 %`; `makes it 3.7 times as long`. change: the share that is removed; negative: added."""
    if abs(change) < NEGLIGIBLE_CHANGE:
        return f"changes {step} by less than 1 %"
    if change < -0.995:
        return f"makes {step} {1 - change:.2g} times as long"
    percent = f"{100 * abs(change):.2g}" if abs(change) < 0.995 else "over 99"
    return f"{'shortens' if change > 0 else 'lengthens'} {step} by {percent} %"


def _taken_off(case: Analysis, proposal: Proposal) -> tuple[float, float]:
    """(GPU time, CPU time) that a fix removes, ns per step; negative if it adds some."""
    now, then = case.graph, proposal.change(case.graph)
    if len(now) != len(then):
        return 0.0, 0.0
    saved, gpu = now.duration_ns - then.duration_ns, now.on_gpu
    steps = max(now.steps, 1)
    return float(saved[gpu].sum()) / steps, float(saved[~gpu].sum()) / steps
