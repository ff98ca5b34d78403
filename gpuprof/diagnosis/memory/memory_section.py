"""Who held the GPU's memory in a diagnosed recording: from the run's snapshot, or the trace's memory events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprof.costs.hardware import Gpu
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.errors import UnreadableTrace
from gpuprof.memory.memory_file import memory_file
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.tracefile.source import Source
from gpuprof.tracefile.trace import Trace

if TYPE_CHECKING:
    from gpuprof.memory.memory_report import MemoryReport

# What analyses memory is imported for the recordings that have any: importing it takes 40 ms.


def with_memory(
    diagnosis: Diagnosis, run: RunFolder | None, trace: Trace | None = None, timeline: Timeline | None = None
) -> Diagnosis:
    """The diagnosis with its memory, if a snapshot or memory events were recorded."""
    try:
        found = _recorded(run, trace, timeline, diagnosis.source)
    except UnreadableTrace:  # gpuprof memory says why
        return diagnosis
    if found is None:
        return diagnosis
    from gpuprof.diagnosis.memory.memory_advice import memory_advice

    return replace(diagnosis, memory=replace(found, advice=memory_advice(diagnosis)))


def _recorded(
    run: RunFolder | None, trace: Trace | None, timeline: Timeline | None, source: Source
) -> MemoryReport | None:
    if run is not None and memory_file(Path(run.path)) is not None:
        from gpuprof.memory.load_memory import load_memory

        return load_memory(Path(run.path))
    if trace is not None and len(trace.memory):
        from gpuprof.memory.memory_events import analyse_trace, has_events

        return analyse_trace(trace, source.path, source.bytes, timeline=timeline) if has_events(trace) else None
    return None


def memory_of(diagnosis: Diagnosis, gpus: Sequence[Gpu] = (), together: Sequence[str] = ()) -> MemoryReport | None:
    """Everything known about a diagnosed recording's memory, with what fits on further GPUs and with several changes
    `together`; None if nothing is known."""
    from gpuprof.diagnosis.memory.memory_advice import memory_advice
    from gpuprof.memory.memory_report import MemoryReport

    advice = memory_advice(diagnosis, gpus, together)
    if diagnosis.memory is not None:
        return replace(diagnosis.memory, advice=advice)
    if advice is None:
        return None
    source = diagnosis.source
    return MemoryReport(Source(source.path, source.kind, source.bytes, source.events), (), (), advice=advice)
