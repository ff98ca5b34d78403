"""Which GPU work belongs to each NVTX range: by gpuprof, and by loops over rows."""

from __future__ import annotations

from collections import Counter

from gpuprof.timeline.gpu.range_gpu_work import project
from gpuprof.timeline.timeline import Timeline
from helpers.make_nsys import MAIN


def projected(timeline: Timeline) -> Counter:
    """(name, start, events, summed ns, busy ns) of each range that owns work."""
    found, ops = project(timeline), timeline.trace.ops
    columns = (ops.start_ns[found.row], found.events, found.gpu_ns, found.busy_ns)
    names = [timeline.trace.strings[i] for i in ops.name[found.row].tolist()]
    rows = zip(names, *(column.tolist() for column in columns), strict=True)
    return Counter(row for row in rows if row[2])


def owned(ranges: list, launches: list, window: tuple[int, int]) -> Counter:
    """The slow way. `ranges`: (name, tid, start, end); `launches`: (tid, begun, start, end of the work).

    A launch belongs to the ranges that are open on its own thread, and those of the main thread.
    """
    found = Counter()
    for name, tid, start, end in ranges:
        mine = [
            (a, b) for thread, begun, a, b in launches if start <= begun < end and (thread == tid or tid == MAIN)
        ]  # fmt: skip
        if mine and window[0] <= start < window[1]:
            ran = sum(b - a for a, b in mine)
            found[name, start, len(mine), ran, covered(mine)] += 1
    return found


def covered(spans: list[tuple[int, int]]) -> int:
    """Time in which any of them runs."""
    total, reach = 0, min(a for a, _ in spans)
    for start, end in sorted(spans):
        total += max(end - max(start, reach), 0)
        reach = max(reach, end)
    return total
