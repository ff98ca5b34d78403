"""The roofline of a recording."""

from __future__ import annotations

import functools
from pathlib import Path

from gpuprof.costs.roofline import Roofline, roofline
from gpuprof.timeline.timeline import Timeline
from helpers.timeline import timeline_of


@functools.lru_cache(maxsize=4)
def examined(path: Path) -> tuple[Timeline, Roofline]:
    timeline = timeline_of(path)
    found = roofline(timeline)
    assert found is not None
    return timeline, found


def whole(found: Roofline) -> int:
    """Nanoseconds of all parts together."""
    parts = (found.compute_ns, found.memory_ns, found.latency_ns, found.inefficient_ns, found.unmodelled_ns)
    return sum(parts)
