"""Kernels of two recordings aligned by name, category, op and module: which are new, gone, more often, or slower."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gpuprof.diagnosis.comparison.comparison import KernelDifference, KernelDifferences, OpDifference
from gpuprof.diagnosis.comparison.counts import OpTable, own_work
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.frames import FrameIndex, module_class
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import ABSENT, I64

Key = tuple[str, str, str | None, str | None]
"""(kernel, category, op, class of the module)."""

SAME = 0.02
"""Counts and mean durations that differ by less are the same."""


@dataclass(frozen=True, slots=True)
class KernelTable:
    """GPU work by key: pieces and summed durations, of all steps of the window."""

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
        """The same, with kernels whose keys become the same taken together."""
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


def compare_kernels(a: KernelTable, b: KernelTable, top: int) -> KernelDifferences:
    """All kernels of both; the `top` with the largest differences by name."""
    a, b = comparable(a, b)
    rows = sorted(_rows(a, b), key=lambda r: (-abs(r.difference_ns), r.name, r.category, r.op or "", r.module or ""))
    shown = [row for row in rows[:top] if row.difference_ns]
    # In which modules a kernel runs does not make it another kernel.
    before, after = ({key[:3] for key in side.count} for side in (a, b))
    difference = sum(row.difference_ns for row in rows)
    return KernelDifferences(
        a_ns=sum(row.a_ns for row in rows),
        b_ns=sum(row.b_ns for row in rows),
        difference_ns=difference,
        count_ns=sum(row.count_ns for row in rows),
        duration_ns=sum(row.duration_ns for row in rows),
        new=len(after - before),
        gone=len(before - after),
        both=len(before & after),
        rows=tuple(shown),
        rest_ns=difference - sum(row.difference_ns for row in shown),
    )


def comparable(a: KernelTable, b: KernelTable) -> tuple[KernelTable, KernelTable]:
    """Both by what both say of their kernels: where one knows no ops, by the names alone, each in the category that
    most of its time has where ops are known."""
    if a.has_ops == b.has_ops:
        if a.has_modules and b.has_modules:
            return a, b
        return a.regrouped(_without_module), b.regrouped(_without_module)
    knowing = a if a.has_ops else b
    category = {name: kind for (name, kind, _, _), _ in sorted(knowing.ns.items(), key=lambda item: item[1])}

    def by_name(key: Key) -> Key:
        return key[0], category.get(key[0], key[1]), None, None

    return a.regrouped(by_name), b.regrouped(by_name)


def _without_module(key: Key) -> Key:
    return (*key[:3], None)


def _rows(a: KernelTable, b: KernelTable) -> Iterator[KernelDifference]:
    for key in dict.fromkeys([*a.count, *b.count]):
        yield difference(
            key, a.count.get(key, 0) / a.steps, round(a.ns.get(key, 0) / a.steps),
            b.count.get(key, 0) / b.steps, round(b.ns.get(key, 0) / b.steps),
        )  # fmt: skip


def difference(key: Key, a_count: float, a_ns: int, b_count: float, b_ns: int) -> KernelDifference:
    """One kernel. What it runs more often counts with the mean duration of both, so that A and B may change places;
    what only one of them runs is all a matter of count."""
    whole = b_ns - a_ns
    if a_count and b_count:
        mean = (a_ns / a_count + b_ns / b_count) / 2
        by_count = round((b_count - a_count) * mean)
        often = abs(b_count - a_count) > SAME * a_count
        slow = abs(b_ns / b_count - a_ns / a_count) > SAME * a_ns / a_count
        change = "both" if often and slow else "count" if often else "duration" if slow else "none"
    else:
        by_count, change = whole, "new" if b_count else "gone"
    name, category, op, module = key
    return KernelDifference(
        name, category, op, module, change, a_ns, b_ns, a_count, b_count, whole, by_count, whole - by_count
    )


def compare_ops(a: OpTable, b: OpTable, top: int) -> tuple[OpDifference, ...]:
    """The host's ops with the largest differences of own time; none where one side recorded no ops."""
    rows = []
    if not (a.count and b.count):
        return ()
    for name, phase in dict.fromkeys([*a.count, *b.count]):
        key = (name, phase)
        before, after = round(a.ns.get(key, 0)), round(b.ns.get(key, 0))
        rows.append(OpDifference(name, phase, a.count.get(key, 0), b.count.get(key, 0), before, after, after - before))
    rows.sort(key=lambda r: (-abs(r.difference_ns), r.name, r.phase))
    return tuple(row for row in rows[:top] if row.difference_ns or row.a_count != row.b_count)
