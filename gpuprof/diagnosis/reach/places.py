"""Places of ledger items in the program: module, op, function and line of each item's largest node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.result.above_reach import Where
from gpuprof.timeline.frames import FrameIndex, frame_of_stack, module_class
from gpuprof.timeline.nesting import climb
from gpuprof.tracefile.trace import ABSENT, OP, Mask

_FRAME = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)$")


@dataclass(frozen=True, slots=True)
class Spot:
    """A moment on a CPU thread."""

    thread: int
    at_ns: int
    op: int
    """Row of the op, or -1."""


NOWHERE = Spot(-1, ABSENT, -1)


def spot_of(case: Analysis, nodes: Mask) -> Spot:
    """The longest of some nodes, among those of the op with most of their time, or among those outside all ops if most
    of the time is there."""
    graph, timeline, ops = case.graph, case.timeline, case.trace.ops
    rows = np.flatnonzero(nodes)
    if not len(rows):
        return NOWHERE
    recorded = (graph.recorded_end_ns - graph.recorded_start_ns)[rows].clip(0)
    ns = np.where(graph.waits[rows], recorded, graph.duration_ns[rows])
    op = climb(graph.scope[rows], timeline.nesting.parent, ops.kind == OP)
    name = np.append(ops.name, -1)[op]
    outside = float(ns[name < 0].sum())
    if 2 * outside > float(ns.sum()):
        mine = name < 0
        rows, ns, op = rows[mine], ns[mine], op[mine]
    elif (name >= 0).any():
        mine = name == int(np.bincount(name[name >= 0], weights=ns[name >= 0]).argmax())
        rows, ns, op = rows[mine], ns[mine], op[mine]
    longest = int(ns.argmax())
    node, row = int(rows[longest]), int(graph.gpu_row[rows[longest]])
    if row >= 0:
        return Spot(int(timeline.links.thread[row]), int(timeline.links.begun_ns[row]), int(op[longest]))
    moment = round(float(graph.recorded_start_ns[node])) + timeline.window[0]
    return Spot(int(graph.lane[node]), moment, int(op[longest]))


def places(case: Analysis, spots: Sequence[Spot]) -> list[Where]:
    """The op, module and function at each spot."""
    trace = case.trace
    if not spots:
        return []
    frames = FrameIndex(trace, case.timeline.nesting)
    thread = np.array([spot.thread for spot in spots], np.int32)
    at, op = (np.array([getattr(spot, name) for spot in spots], np.int64) for name in ("at_ns", "op"))
    modules, functions = frames.module(thread, at, op), frames.frame(thread, at, op)
    found = []
    for spot, module, frame in zip(spots, modules.tolist(), functions.tolist(), strict=True):
        name, text = trace.text(module), trace.text(frame)
        text = frame_of_stack(text) if text else None
        parts = _FRAME.match(text) if text else None
        found.append(
            Where(
                module=module_class(name) if name else None,
                op=trace.strings[int(trace.ops.name[spot.op])] if spot.op >= 0 else None,
                function=f"{parts['file']}: {parts['function']}" if parts else text,
                line=int(parts["line"]) if parts else None,
                before=_following(case, spot) if spot.op < 0 and not name and not text else None,
            )
        )
    return found


def _following(case: Analysis, spot: Spot) -> str | None:
    """The first op of the thread after a moment."""
    ops = case.trace.ops
    later = np.flatnonzero((ops.kind == OP) & (ops.thread == spot.thread) & (ops.start_ns >= spot.at_ns))
    if spot.at_ns == ABSENT or not len(later):
        return None
    return case.trace.strings[int(ops.name[later[ops.start_ns[later].argmin()]])]
