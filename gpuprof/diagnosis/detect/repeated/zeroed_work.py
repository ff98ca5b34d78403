"""Work whose result is multiplied by a constant zero, as marked by the recorder at the start of each backward pass."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.passes import backward_of
from gpuprof.record.phases.phase_names import ZEROED_RANGE
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.tracefile.trace import ANNOTATION, OP, Mask
from gpuprof.units import Convention, Names

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

_NUMBERS = re.compile(rf"^{re.escape(ZEROED_RANGE)}(\d+)-(\d+)$")
_MODULE = re.compile(r"^nn\.Module: ")
_PRODUCT = "aten::mul"
MOST_NAMED: Convention[Names] = 3


@dataclass(frozen=True, slots=True)
class Zeroed:
    """Stretches of forward work without effect, with their backward passes."""

    nodes: Mask
    stretches: int
    modules: tuple[str, ...]
    """Classes of modules in them, the largest first; empty if the recording has no module ranges."""


def find_zeroed(case: Analysis) -> Zeroed | None:
    """The marked work whose multiplication is in the trace; None if there is none."""
    ops, trace = case.trace.ops, case.trace
    low, high = case.timeline.window
    marked = trace.rows_named(ops.name, lambda text: text.startswith(ZEROED_RANGE)) & (ops.kind == ANNOTATION)
    threads, starts, ends = [], [], []
    for mark in np.flatnonzero(marked & (ops.start_ns >= low) & (ops.start_ns < high)).tolist():
        found = _NUMBERS.match(trace.strings[int(ops.name[mark])])
        if found is None:
            continue
        mine = (ops.kind == OP) & (ops.thread == ops.thread[mark]) & (ops.end_ns <= ops.start_ns[mark])
        mine &= (ops.forward_thread <= 0) & (ops.sequence >= int(found[1])) & (ops.sequence <= int(found[2]))
        rows = np.flatnonzero(mine & (ops.start_ns >= low))
        last = rows[ops.sequence[rows] == int(found[2])]
        if any(trace.strings[int(ops.name[row])] == _PRODUCT for row in last.tolist()):
            threads.append(int(ops.thread[mark]))
            starts.append(int(ops.start_ns[rows].min()))
            ends.append(int(ops.end_ns[rows].max()))
    if not threads:
        return None
    forward = Stretches(np.array(threads, np.int64), np.array(starts, np.int64), np.array(ends, np.int64))
    graph = case.graph
    inside = (nodes_in(graph, forward) >= 0) | (nodes_in(graph, backward_of(case, forward)) >= 0)
    nodes = inside & ~graph.waits
    return Zeroed(nodes, len(threads), _modules(case, starts[-1], ends[-1])) if nodes.any() else None


def _modules(case: Analysis, start_ns: int, end_ns: int) -> tuple[str, ...]:
    ops = case.trace.ops
    rows = np.flatnonzero(
        case.ops_named(_MODULE.match) & (ops.kind == ANNOTATION) & (ops.start_ns >= start_ns) & (ops.end_ns <= end_ns)
    )
    rows = rows[np.argsort(ops.start_ns[rows] - ops.end_ns[rows], kind="stable")]
    names = (case.trace.strings[int(ops.name[row])] for row in rows.tolist())
    return tuple(dict.fromkeys(re.sub(r"^nn\.Module: |_\d+$", "", name) for name in names))[:MOST_NAMED]
