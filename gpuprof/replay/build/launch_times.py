"""The launching calls' own work: when it begins, and how long it takes in calls that wait for their copy."""

from __future__ import annotations

import numpy as np

from gpuprof.calibration import latency as latency_calibrated
from gpuprof.replay.build.calls import ReplayCalls
from gpuprof.replay.build.latencies import LATER_REASON_NS, prompt, usual
from gpuprof.replay.build.queues import QueueEdges
from gpuprof.replay.build.work import GpuWork
from gpuprof.tracefile.trace import F64


def own_begun(calls: ReplayCalls, work: GpuWork, queue: QueueEdges) -> F64:
    """When the launching call of each kernel or copy began its own work: after waiting for room on its stream."""
    begun = np.where(work.piece >= 0, calls.start_ns[work.call] if len(calls) else 0, 0.0)
    np.maximum.at(begun, queue.work, queue.freed_ns)
    return begun


def copy_own_ns(work: GpuWork, begun: F64) -> F64:
    """Time that a blocking copy's call takes before its copy can start, ns; NaN for other work.

    Estimated from copies that started on an idle stream: they waited for their launch only. `begun`: when each call
    began its own work, which it does when its stream has room.
    """
    own = np.full(len(work), np.nan)
    rows = np.flatnonzero(work.blocks)
    if not len(rows):
        return own
    begun = begun[rows]
    clear = work.start_ns - work.free_ns > LATER_REASON_NS
    since = work.start_ns - work.launched_ns
    latency = usual(
        since, prompt(since, (work.piece >= 0) & ~work.blocks & work.head & clear), latency_calibrated.LAUNCH_NS.value
    )
    until = work.start_ns[rows] - begun - latency
    idle = clear[rows]
    typical = float(np.median(until[idle])) if idle.any() else latency_calibrated.LAUNCH_NS.value
    # A copy that queued behind other work shows only an upper limit.
    own[rows] = np.clip(np.where(idle, until, np.minimum(until, typical)), 0, np.maximum(work.end_ns[rows] - begun, 0))
    return own
