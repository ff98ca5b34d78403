"""The GPU work that the window's steps launched, whenever it ran.

While the host runs ahead, the window begins with work of the steps before and ends before its own is done. Both counted
would be a part of a step twice; and a window of one step could hold a forward pass and no backward.
"""

from __future__ import annotations

import numpy as np

from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.model import ABSENT, I64


def own_work(timeline: Timeline) -> I64:
    """Rows of the GPU work of the window's steps, ascending: the timeline's members without what was queued before.

    Of work whose launch was not recorded, that was queued before which runs ahead of all launched work of its stream;
    a stream without any launched work keeps all.
    """
    rows, gpu = timeline.members, timeline.trace.gpu
    pairs = np.stack([gpu.device[rows].astype(np.int64), gpu.stream[rows].astype(np.int64)], axis=1)
    _, stream = np.unique(pairs, axis=0, return_inverse=True)
    stream = stream.reshape(-1)
    launched = timeline.links.begun_ns[rows] != ABSENT
    first = np.full(int(stream.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    for one in np.unique(stream[launched]).tolist():
        first[one] = gpu.start_ns[rows[launched & (stream == one)]].min()
    return rows[launched | (gpu.start_ns[rows] >= first[stream])]
