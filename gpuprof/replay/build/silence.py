"""The end of a window in which nothing was recorded on the CPU: while the GPU works, the CPU is assumed to wait for it.
A serving engine launches a whole pass and then waits in another thread or process, or the recording of the CPU ended
before that of the GPU. If that time counted as Python code, it would be the step's limit, and no faster GPU would help.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gpuprof.calibration import doubts as calibrated
from gpuprof.replay.build.cpu_lanes import Pieces
from gpuprof.replay.build.waits import SyncEdges
from gpuprof.replay.build.work import GpuWork
from gpuprof.timeline.intervals import clip, union
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import OP


def with_silent_end(syncs: SyncEdges, timeline: Timeline, pieces: Pieces, work: GpuWork) -> SyncEdges:
    """The waits of calls and, if the main thread's last piece is silent, its wait for the remaining GPU work."""
    main = np.flatnonzero(pieces.lane == timeline.main_thread)
    low, high = timeline.window
    if not len(main) or len(timeline.steps.start_ns) < 1:
        return syncs
    last = int(main[-1])
    length = int(pieces.end_ns[last] - pieces.start_ns[last])
    if length <= calibrated.SILENT_END.value * (high - low) or not _silent(timeline, pieces, last):
        return syncs
    begun, ended = float(pieces.start_ns[last]), float(pieces.end_ns[last])
    start, end = (np.round(t).astype(np.int64) for t in (work.start_ns, work.end_ns))
    busy = clip(union(start, end), round(begun), round(ended))
    awaited = np.flatnonzero((work.piece >= 0) & (work.launched_ns <= begun) & (work.end_ns <= ended))
    if busy.total < calibrated.SILENT_WORKS.value * length or not len(awaited):
        return syncs
    source = int(awaited[np.argmax(work.end_ns[awaited])])
    return dataclasses.replace(
        syncs,
        piece=np.append(syncs.piece, last),
        source=np.append(syncs.source, source),
        wrapped=np.append(syncs.wrapped, False),
        lag_ns=np.append(syncs.lag_ns, ended - work.end_ns[source]),
        own_of_piece={**syncs.own_of_piece, last: 0.0},
    )


def _silent(timeline: Timeline, pieces: Pieces, piece: int) -> bool:
    """Whether a piece lies in no op and no call: only annotations may be open around it."""
    scope = int(pieces.scope[piece])
    return bool(pieces.call[piece] < 0 and not pieces.waits[piece]) and (
        scope < 0 or timeline.trace.ops.kind[scope] != OP
    )
