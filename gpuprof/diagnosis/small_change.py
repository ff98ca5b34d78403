"""Why a fix is ruled out that does something, but too little, or what it does is not known well enough."""

from __future__ import annotations

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.proposal import NEGLIGIBLE, Proposal
from gpuprof.diagnosis.diagnosis import Range
from gpuprof.diagnosis.sentences import in_ms

SAME_WORK = 0.01
"""Factors of work that differ by less are the same."""


def small_change(case: Analysis, proposal: Proposal, gain: Range) -> str:
    """`takes 0.003 ms of GPU time off a step of 288 ms, under 1 %`; of a larger batch how much longer its step is."""
    if abs(proposal.work - 1) > SAME_WORK:
        longer = proposal.work / gain.expected
        return f"{proposal.work:.3g} times the work takes {longer:.3g} times as long"
    named = tuple(zip(_taken_off(case, proposal), ("GPU", "CPU"), strict=True))
    taken = " and ".join(f"{in_ms(ns)} of {name} time" for ns, name in named if ns > 0)
    added = " and ".join(f"{in_ms(-ns)} of {name} time" for ns, name in named if ns < -NEGLIGIBLE * case.mean_ns)
    change = 1 - 1 / gain.expected
    how = "by less than 1 %" if abs(change) < NEGLIGIBLE else f"by {100 * abs(change):.2g} %"
    verb = "changes" if abs(change) < NEGLIGIBLE else "shortens" if change > 0 else "lengthens"
    step = f"{case.unit.a} of {in_ms(case.mean_ns)}"
    if taken and added:
        return f"takes {taken} off {step} and adds {added}, which {verb} it {how}"
    if taken or added:
        return f"{f'takes {taken} off' if taken else f'adds {added} to'} {step}, which {verb} it {how}"
    return f"{verb} {step} {how}"


def _taken_off(case: Analysis, proposal: Proposal) -> tuple[float, float]:
    """GPU and CPU time that a fix removes, ns a step; negative where it adds some."""
    now, then = case.graph, proposal.change(case.graph)
    if len(now) != len(then):
        return 0.0, 0.0
    saved, gpu = now.duration_ns - then.duration_ns, now.on_gpu
    steps = max(now.steps, 1)
    return float(saved[gpu].sum()) / steps, float(saved[~gpu].sum()) / steps
