"""Where in the program something is: module, op, function and line of its largest node."""

from __future__ import annotations

import re

import numpy as np

from gpuprof.diagnosis.case import Case
from gpuprof.diagnosis.reach.above_reach import Where
from gpuprof.timeline.frames import FrameIndex, module_class
from gpuprof.timeline.nesting import climb
from gpuprof.tracefile.trace import I64, OP, Mask

_FRAME = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)$")
NOWHERE = Where(None, None, None, None)


class Places:
    """The places of a case; what finds them is made once."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._frames: FrameIndex | None = None

    def of(self, nodes: Mask) -> Where:
        """The op with most of the time of some nodes, and the module and function around the longest of them."""
        case = self._case
        graph, timeline, trace = case.graph, case.timeline, case.trace
        rows = np.flatnonzero(nodes)
        if not len(rows):
            return NOWHERE
        ns = np.maximum(graph.duration_ns[rows], np.where(graph.waits[rows], _recorded(case, rows), 0.0))
        op = climb(graph.scope[rows], timeline.nesting.parent, trace.ops.kind == OP)
        name = np.append(trace.ops.name, -1)[op]
        if (name >= 0).any():
            most = int(np.bincount(name[name >= 0], weights=ns[name >= 0]).argmax())
            mine = rows[name == most]
            longest = int(mine[ns[name == most].argmax()])
            op_name, op_row = trace.strings[most], int(op[rows == longest][0])
        else:
            longest, op_name, op_row = int(rows[ns.argmax()]), None, -1
        thread, moment = self._launched(longest)
        if self._frames is None:
            self._frames = FrameIndex(trace, timeline.nesting)
        one = np.array([thread], np.int32), np.array([moment], np.int64), np.array([op_row], np.int64)
        module = trace.text(int(self._frames.module(*one)[0]))
        frame = trace.text(int(self._frames.frame(*one)[0]))
        found = _FRAME.match(frame) if frame else None
        function = f"{found['file']}: {found['function']}" if found else frame
        return Where(module_class(module) if module else None, op_name, function, int(found["line"]) if found else None)

    def _launched(self, node: int) -> tuple[int, int]:
        """Thread and moment of a node on the CPU, or of the launch of one on the GPU."""
        graph, timeline = self._case.graph, self._case.timeline
        row = int(graph.gpu_row[node])
        if row >= 0:
            return int(timeline.links.thread[row]), int(timeline.links.begun_ns[row])
        return int(graph.lane[node]), round(float(graph.recorded_start_ns[node])) + timeline.window[0]


def _recorded(case: Case, rows: I64) -> np.ndarray:
    graph = case.graph
    return (graph.recorded_end_ns - graph.recorded_start_ns)[rows].clip(0)
