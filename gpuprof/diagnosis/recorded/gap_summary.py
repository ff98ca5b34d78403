"""Summary of the gaps: by cause, by phase, and the longest."""

from __future__ import annotations

import numpy as np

from gpuprof.diagnosis.idle.gaps import CAUSES, GapColumns
from gpuprof.diagnosis.result.diagnosis import CauseTime, Gap, Gaps, PhaseGaps
from gpuprof.timeline.frames import frame_of_stack, module_class
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import I64, Trace


def gap_summary(timeline: Timeline, columns: GapColumns, top: int) -> Gaps:
    """All gaps by cause and by phase, and the `top` longest."""
    ns = columns.ns
    largest = np.argsort(-ns, kind="stable")[:top]
    return Gaps(
        count=len(ns),
        total_ns=int(ns.sum()),
        by_cause=cause_times(columns.by_cause),
        by_phase=_gaps_by_phase(timeline, columns),
        largest=tuple(_gap(timeline, columns, int(i)) for i in largest),
    )


def cause_times(by_cause: I64) -> tuple[CauseTime, ...]:
    """Sums of the columns of [gaps, causes], ns, most time first."""
    totals, counts = by_cause.sum(axis=0).tolist(), (by_cause > 0).sum(axis=0).tolist()
    causes = [CauseTime(*row) for row in zip(CAUSES, totals, counts, strict=True) if row[1]]
    return tuple(sorted(causes, key=lambda c: -c.ns))


def _gap(timeline: Timeline, columns: GapColumns, i: int) -> Gap:
    trace = timeline.trace
    op, frame = int(columns.op[i]), trace.text(int(columns.frame[i]))
    return Gap(
        start_ns=int(columns.start_ns[i]) - timeline.window[0],
        ns=int(columns.ns[i]),
        device=int(columns.device[i]),
        cause=CAUSES[columns.cause[i]],
        op=trace.strings[trace.ops.name[op]] if op >= 0 else None,
        module=trace.text(int(columns.module[i])),
        phase=PHASES[columns.phase[i]],
        frame=frame_of_stack(frame) if frame else None,
    )


def _gaps_by_phase(timeline: Timeline, columns: GapColumns) -> tuple[PhaseGaps, ...]:
    """Idle time per phase, with the op that most of it waits for and the class of that op's module."""
    trace = timeline.trace
    op = np.where(columns.op >= 0, trace.ops.name[columns.op] if len(trace.ops) else -1, -1).astype(np.int64)
    result = []
    for code in np.unique(columns.phase).tolist():
        rows = np.flatnonzero(columns.phase == code)
        first = _most(op[rows], columns.ns[rows], trace)
        mine = rows[op[rows] == first]
        # Modules are numbered (Linear_12), so they are grouped by class.
        times: dict[str, int] = {}
        for module in np.unique(columns.module[mine]).tolist():
            if module >= 0:
                name = module_class(trace.strings[module])
                times[name] = times.get(name, 0) + int(columns.ns[mine][columns.module[mine] == module].sum())
        result.append(
            PhaseGaps(
                phase=PHASES[code],
                ns=int(columns.ns[rows].sum()),
                count=len(rows),
                op=trace.text(first),
                module=max(sorted(times), key=lambda name: times[name]) if times else None,
            )
        )
    return tuple(sorted(result, key=lambda p: -p.ns))


def _most(keys: np.ndarray, ns: np.ndarray, trace: Trace) -> int:
    """The string id with most time; of equal ones, the text that sorts first."""
    distinct, inverse = np.unique(keys, return_inverse=True)
    time = np.zeros(len(distinct), np.int64)
    np.add.at(time, inverse, ns)
    return min(distinct[time == time.max()].tolist(), key=lambda key: trace.text(key) or "")
