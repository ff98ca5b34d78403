"""The mean step with a change that saves memory, as priced by the finding that declares it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.memory_remedy import Priced
from gpuprof.diagnosis.fixes.memory_remedies import offered_by
from gpuprof.diagnosis.fixes.predicted_step import predict_together
from gpuprof.projection.memory.memory_fixes import MemoryFix
from gpuprof.projection.memory.recorded_memory import RecordedMemory
from gpuprof.value_range import Range


def step_with(fixes: Sequence[MemoryFix], case: Analysis, memory: RecordedMemory) -> tuple[Range | None, str | None]:
    """The mean step for the recorded work with one or several changes, ns; or why it is unknown."""
    found: list[Priced] = []
    for fix in fixes:
        priced = _priced(fix, case, memory)
        if isinstance(priced, str):
            return None, priced
        found.append(priced)
    proposals = [proposal for one in found for proposal in one.proposals]
    step = predict_together(case, proposals)
    work = math.prod(proposal.work for proposal in proposals)
    ends = zip((step.low, step.expected, step.high), *(one.more_ns for one in found), strict=True)
    return Range(*(round(ns / work + sum(more)) for ns, *more in ends)), None


def _priced(fix: MemoryFix, case: Analysis, memory: RecordedMemory) -> Priced | str:
    """The price of one change, or why it is unknown."""
    one = offered_by(fix)
    if one.memory is not None and one.memory.price is not None:
        return one.memory.price(fix, case, memory)
    proposal = next(iter(case.proposals(one.find)), None) if one.find is not None else None
    return Priced((proposal,)) if proposal else "its finding does not find in this recording what it would replace"
