"""Evidence of waits for the GPU: how many there are, how long they take, and the lines that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.sentences import duration
from gpuprof.timeline.frames import FrameIndex
from gpuprof.tracefile.trace import I64, NO_TEXT, Mask
from gpuprof.units import Convention, Entries

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FRAMES_SHOWN: Convention[Entries] = 3
"""Most names of ops, or lines, that a sentence of evidence names."""


def wait_evidence(case: Analysis, waits: Mask, what: str, ops: I64) -> tuple[Evidence, ...]:
    """Evidence of CPU nodes that wait for the GPU: how many, how long, and from which lines. waits: over the graph's
    nodes; what: their kind, in words; ops: rows of the ops that wait, whose names are counted."""
    graph = case.graph
    count = case.per_step(float(waits.sum()))
    text = f"{what}: {count:,.0f} {case.unit.a}"
    names = _most(case.trace.ops.name[ops])
    if names:
        text += " (" + ", ".join(f"{n / case.steps:,.0f} × {case.trace.strings[i]}" for i, n in names) + ")"
    waited_ns = case.per_step(float((graph.recorded_end_ns - graph.recorded_start_ns)[waits].clip(0).sum()))
    text += f", which block the CPU for {duration(waited_ns)}"
    frames = FrameIndex(case.trace, case.timeline.nesting)
    nodes = np.flatnonzero(waits & (graph.call >= 0))
    calls = graph.call[nodes]
    found = frames.frame(case.trace.calls.thread[calls], case.trace.calls.start_ns[calls], graph.scope[nodes])
    places = [case.trace.strings[i] for i, _ in _most(found[found != NO_TEXT])]
    if places:
        text += "; from " + ", ".join(places)
    return spans(case, text, waits, waits=True)


def _most(ids: np.ndarray) -> list[tuple[int, int]]:
    """The most frequent string ids with their counts."""
    distinct, counts = np.unique(ids, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:FRAMES_SHOWN]
    return [(int(distinct[i]), int(counts[i])) for i in order]
