"""The kernels of a recording, counted and summed by name, category, op and module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.pair.counts import own_work
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.frames import FrameIndex, module_class
from gpuprof.tracefile.trace import ABSENT, I64

if TYPE_CHECKING:
    from gpuprof.timeline.timeline import Timeline

Key = tuple[str, str, str | None, str | None]
"""(kernel, category, op, class of the module)."""


@dataclass(frozen=True, slots=True)
class KernelTable:
    """GPU work by key: counts and summed durations, over all steps of the window."""

    steps: int
    count: Mapping[Key, int]
    ns: Mapping[Key, int]

    @property
    def has_modules(self) -> bool:
        return any(key[3] is not None for key in self.count)

    @property
    def has_ops(self) -> bool:
        return any(key[2] is not None for key in self.count)

    def regrouped(self, less: Callable[[Key], Key]) -> KernelTable:
        """The table with keys mapped by `less`; kernels with equal new keys are summed."""
        count: dict[Key, int] = {}
        ns: dict[Key, int] = {}
        for key, pieces in self.count.items():
            other = less(key)
            count[other] = count.get(other, 0) + pieces
            ns[other] = ns.get(other, 0) + self.ns[key]
        return KernelTable(self.steps, count, ns)


def kernel_table(timeline: Timeline) -> KernelTable:
    """The GPU work of the window's steps."""
    trace, links, rows = timeline.trace, timeline.links, own_work(timeline)
    gpu, strings = trace.gpu, trace.strings
    op = links.op[rows]
    op_name = np.where(op >= 0, trace.ops.name[op] if len(trace.ops) else -1, -1).astype(np.int64)
    module = _modules(timeline, rows)
    columns = np.stack([gpu.name[rows], timeline.category[rows], op_name, module], axis=1).astype(np.int64)
    distinct, inverse = np.unique(columns, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    took = np.zeros(len(distinct), np.int64)
    np.add.at(took, inverse, (gpu.end_ns - gpu.start_ns)[rows].clip(0))
    counts = np.bincount(inverse, minlength=len(distinct))
    count: dict[Key, int] = {}
    ns: dict[Key, int] = {}
    for (name, category, of, inside), pieces, time in zip(
        distinct.tolist(), counts.tolist(), took.tolist(), strict=True
    ):
        where = module_class(strings[inside]) if inside >= 0 else None
        key = (strings[name], CATEGORIES[category], strings[of] if of >= 0 else None, where)
        count[key] = count.get(key, 0) + pieces  # modules are numbered, their class is not
        ns[key] = ns.get(key, 0) + time
    return KernelTable(len(timeline.steps.start_ns), count, ns)


def _modules(timeline: Timeline, rows: I64) -> np.ndarray:
    """String id of the nn.Module around the launch of each of these GPU events, or -1."""
    links = timeline.links
    known = links.begun_ns[rows] != ABSENT
    found = np.full(len(rows), -1, np.int64)
    if known.any():
        some = rows[known]
        index = FrameIndex(timeline.trace, timeline.nesting)
        found[known] = index.module(links.thread[some], links.begun_ns[some], links.scope[some])
    return found
