"""Evidence for a finding: the modules or ops with most of its time, each with its longest stretch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.cpu.own_lines import own_lines
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.sentences import gpu_named
from gpuprof.timeline.frames import FrameIndex, module_class
from gpuprof.timeline.links import around
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import PHASES
from gpuprof.tracefile.distinct import distinct, numbered
from gpuprof.tracefile.remembered import remembered
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE, F64, I64, OP, Mask
from gpuprof.units import Assumed, Convention, Parts, Share, WholeNs

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

MOST_PARTS: Convention[Parts] = 3
"""Most parts of the program that are named."""
LEAST_SHARE_OF_EVIDENCE: Assumed[Share] = 0.02
"""Smallest share of the whole of a part that is named; the first is always named."""
LANE_GAP_NS: Assumed[WholeNs] = 100_000
"""Pieces of a lane that are closer than this, ns, form one stretch."""
BEGIN_NS: Assumed[WholeNs] = 20_000
"""An op that starts at most this long before a stretch, ns, starts with it: the time before its first launch is CPU
time."""
NAMING_OP_SHARE: Assumed[Share] = 0.5
"""Smallest share of a stretch that an op must take to name the stretch; otherwise it only begins it."""
AND_ON = " …"
"""Suffix of the name of an op that begins a longer stretch."""
OUTSIDE = "Python between ops"
"""Name of CPU time outside all modules, ops and calls."""


def spans(case: Analysis, text: str, nodes: Mask, waits: bool = False) -> tuple[Evidence, ...]:
    """The statement, and the parts of the program with most of its time, each with its longest stretch.

    `nodes`: the nodes of the statement's totals; `waits`: the statement is about the CPU's waiting in them. The larger
    of GPU and CPU time is shown."""
    graph = case.graph
    rows = np.flatnonzero(nodes & (graph.waits == waits))
    if not len(rows):
        return (Evidence(text),)
    ns = _without_profiler(case, rows)
    on_gpu = graph.on_gpu[rows]
    shown = on_gpu if ns[on_gpu].sum() >= ns[~on_gpu].sum() and on_gpu.any() else ~on_gpu
    rows, ns = rows[shown], ns[shown]
    of_all = _parts(case)
    instance, part, names = of_all.instance[rows], of_all.part[rows], of_all.names
    total = np.bincount(part, weights=ns, minlength=len(names))
    there = np.bincount(part, minlength=len(names)) > 0
    ranked = np.argsort(np.where(there, -total, np.inf), kind="stable")[: min(MOST_PARTS, int(there.sum()))]
    ranked = ranked[(total[ranked] >= LEAST_SHARE_OF_EVIDENCE * total.sum()) | (ranked == ranked[0])]
    places = [
        _longest(case, rows[part == i], instance[part == i], names[i], case.per_step(float(total[i])))
        for i in ranked.tolist()
    ]
    return Evidence(text, lines=own_lines(case, nodes & ~graph.on_gpu & (graph.waits == waits))), *places


def _without_profiler(case: Analysis, rows: I64) -> F64:
    """Time of each node without the profiler's cost, as in all totals; waits as recorded, ns."""
    graph = case.graph
    recorded = (graph.recorded_end_ns - graph.recorded_start_ns)[rows].clip(0)
    return np.where(graph.waits[rows], recorded, graph.duration_ns[rows])


@dataclass(frozen=True, slots=True)
class _Parts:
    """The part of the program that each node of the graph belongs to."""

    instance: I64
    """One call of a module in one phase."""
    part: I64
    """All calls of modules of one class in one phase: a row of `names`."""
    names: list[str]


@remembered
def _parts(case: Analysis) -> _Parts:
    """The parts of all nodes.

    Backward work belongs to the module of its forward op. In a recording without modules the part is the outermost op,
    or the call, around the node.
    """
    graph, trace, nesting = case.graph, case.trace, case.timeline.nesting
    ops = trace.ops
    index = FrameIndex(trace, nesting)
    in_frames, in_ops = index.module_rows(*_launched(case), graph.scope)
    in_op = np.append(ops.kind == OP, False)[nesting.parent]
    outer = climb(graph.scope, nesting.parent, ~in_op)
    kinds = (
        (in_frames, trace.frames.name),
        (in_ops, ops.name),
        (outer, ops.name),
        (graph.call, trace.calls.name),
    )
    instance, text = np.full(len(graph), -1, np.int64), np.full(len(graph), -1, np.int64)
    first = 0
    for row, name in kinds:
        known = (row >= 0) & (instance < 0)
        instance[known], text[known] = first + row[known], name[row[known]]
        first += len(name)
    in_module = (in_frames >= 0) | (in_ops >= 0)
    phase = np.where(in_module, graph.phase.astype(np.int64), len(PHASES))
    several = len(PHASES) + 1
    code = (text + 1) * several + phase
    named = [_part_named(case, one // several - 1, one % several) for one in distinct(code).tolist()]
    names = sorted(set(named))
    row_of = {name: i for i, name in enumerate(names)}
    part = np.array([row_of[name] for name in named], np.int64)[numbered(code)]
    return _Parts(instance * several + phase, part, names)


def _launched(case: Analysis) -> tuple[np.ndarray, I64]:
    """(thread, moment) at which each node ran on the CPU, or was launched there."""
    graph, links = case.graph, case.timeline.links
    begun = case.timeline.window[0] + np.round(graph.recorded_start_ns).astype(np.int64)
    thread, row = graph.lane.astype(np.int32), graph.gpu_row[graph.on_gpu]
    thread[graph.on_gpu] = links.thread[row]
    begun[graph.on_gpu] = links.begun_ns[row]
    return thread, begun


def _part_named(case: Analysis, text: int, phase: int) -> str:
    """`LlamaMLP, backward`, `MmBackward0`, `cudaMemcpyAsync`."""
    name = case.trace.text(text)
    if name is None or case.timeline.steps.are(name):
        return OUTSIDE
    if phase < len(PHASES):
        return f"{module_class(name)}, {PHASES[phase]}" if case.workload.kind != "inference" else module_class(name)
    return name.removeprefix(AUTOGRAD_ENGINE)


def _longest(case: Analysis, rows: I64, instance: I64, name: str, part_ns: float) -> Evidence:
    """The longest stretch of a part of the program on one track, within one call of its module."""
    graph = case.graph
    tracks = np.where(graph.on_gpu[rows], -1 - _device(case, rows), graph.lane[rows])
    order = np.lexsort((graph.recorded_start_ns[rows], instance, tracks))
    rows, instance, tracks = rows[order], instance[order], tracks[order]
    first, start, end = _stretches(tracks, instance, graph.recorded_start_ns[rows], graph.recorded_end_ns[rows])
    longest = int(np.lexsort((-start, start - end))[0])
    begun, ns = float(start[longest]), float(end[longest] - start[longest])
    later = case.timeline.window[0] - case.origin_ns
    named, is_whole = _what(case, int(rows[first[longest]]), begun, ns)
    track = int(tracks[first[longest]])
    text, begins = (named, None) if is_whole else (named + AND_ON, named)
    return Evidence(
        text, round(begun) + later, round(ns), _track(case, track), name, round(part_ns), begins, on_gpu=track < 0
    )


def _stretches(track: I64, instance: I64, start: F64, end: F64) -> tuple[I64, F64, F64]:
    """(first piece, start, end) of each stretch: consecutive pieces of one instance on one track, in order of time."""
    begins = np.ones(len(track), bool)
    begins[1:] = (np.diff(track) != 0) | (np.diff(instance) != 0)
    of = np.cumsum(begins) * len(track)
    # The latest end so far within the instance on its track, by its rank among all ends.
    order = np.argsort(end, kind="stable")
    rank = np.empty(len(end), np.int64)
    rank[order] = np.arange(len(end))
    until = end[order[np.maximum.accumulate(of + rank) - of]]
    begins[1:] |= start[1:] - until[:-1] > LANE_GAP_NS
    first = np.flatnonzero(begins)
    return first, start[first], until[np.append(first[1:], len(track)) - 1]


def _what(case: Analysis, node: int, start: float, ns: float) -> tuple[str, bool]:
    """(the kernel, op or call that a stretch is, or else that begins it; whether it is most of the stretch)."""
    trace, graph = case.trace, case.graph
    scope, call = int(graph.scope[node]), int(graph.call[node])
    if graph.on_gpu[node]:
        row = int(graph.gpu_row[node])
        return trace.strings[trace.gpu.name[row]], _is_most(int(trace.gpu.end_ns[row] - trace.gpu.start_ns[row]), ns)
    if scope >= 0:
        scope = _outermost(case, scope, start)
        return _op_named(case, scope, ns)
    begun = np.array([case.timeline.window[0] + round(start)], np.int64)
    (outside,) = around(trace, case.timeline.nesting, begun).tolist()  # op of another thread, which waits for this one
    if outside >= 0:
        return _op_named(case, int(outside), ns)
    return (trace.strings[trace.calls.name[call]] if call >= 0 else "Python"), True


def _op_named(case: Analysis, op: int, ns: float) -> tuple[str, bool]:
    ops = case.trace.ops
    return case.trace.strings[ops.name[op]], _is_most(int(ops.end_ns[op] - ops.start_ns[op]), ns)


def _is_most(own_ns: float, ns: float) -> bool:
    return own_ns >= NAMING_OP_SHARE * ns


def _outermost(case: Analysis, op: int, start: float) -> int:
    """The outermost op around `op` that begins with the stretch."""
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    begun = case.timeline.window[0] + start - BEGIN_NS
    while parent[op] >= 0 and ops.kind[parent[op]] == OP and ops.start_ns[parent[op]] >= begun:
        op = int(parent[op])
    return op


def _device(case: Analysis, rows: np.ndarray) -> np.ndarray:
    gpu_row = case.graph.gpu_row[rows]
    if not len(case.trace.gpu.device):
        return np.zeros(len(rows), np.int64)
    # An unrecorded or negative device counts as the first.
    return np.where(gpu_row >= 0, case.trace.gpu.device[gpu_row].clip(0), 0)


def _track(case: Analysis, track: int) -> str:
    if track < 0:
        return gpu_named(-1 - track, case.devices)
    thread = case.trace.threads[track]
    return thread.name or thread.thread
