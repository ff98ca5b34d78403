"""Device work that overlaps with the CPU's critical path: a faster device would not shorten the step there.

The CPU launches work and continues. If the device later runs out of work and waits for the next launch, the critical
path is on the CPU: from the point where it last waited for the device to that launch. What the device did in between is
not on the critical path. If the CPU waits for every kernel, nothing is hidden.
"""

from __future__ import annotations

import numpy as np

from gpuprof.diagnosis.idle.gaps import CAUSES, GapColumns, calls_by_cause
from gpuprof.timeline.intervals import Cover, union
from gpuprof.timeline.timeline import Timeline

_NOT_THE_HOST = [CAUSES.index(name) for name in ("device", "communication", "unknown")]


def hidden_ns(timeline: Timeline, gaps: GapColumns, device: int) -> int:
    """How long a device worked in the window while the critical path was on the CPU, ns."""
    (one,) = (d for d in timeline.devices if d.device == device)
    busy = Cover(one.busy)
    by_host = gaps.ns - gaps.by_cause[:, _NOT_THE_HOST].sum(axis=1)
    waited_at = gaps.start_ns[(gaps.device == device) & (by_host > 0)]
    copy, sync, allocator = calls_by_cause(timeline)
    calls = timeline.trace.calls
    rows = np.flatnonzero(copy | sync | allocator)
    rows = rows[busy.between(calls.start_ns[rows], calls.end_ns[rows]) > 0]
    # When the CPU last stopped waiting, among waits that had begun; the window's start if it had not waited.
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    ended = np.concatenate([[one.low], np.maximum.accumulate(calls.end_ns[rows].clip(one.low))]).astype(np.int64)
    since = ended[np.searchsorted(calls.start_ns[rows], waited_at, side="right")]
    paths = union(since, waited_at)
    return int(busy.between(paths.start, paths.end).sum()) if len(paths) else 0
