"""What the GPU work of the window consists of: by category, by op, by phase, by kernel."""

from __future__ import annotations

import numpy as np

from gpuprof.costs.roofline import Roofline, category_bounds
from gpuprof.diagnosis.result.diagnosis import CategoryTime, Kernels, KernelTime, NamedTime
from gpuprof.timeline.categories import CATEGORIES, TENSOR_CATEGORIES
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.distinct import distinct, numbered
from gpuprof.tracefile.trace import I64, KERNEL, Trace

_MOVES = ("communication", "memcpy", "memset", "other")


def category_bound(category: str, roof: Roofline | None = None) -> str | None:
    """What limits a category: most of its time by the roofline, or else what usually limits it."""
    found = category_bounds(roof).get(category) if roof else None
    if found is not None:
        return found
    if category in TENSOR_CATEGORIES:
        return "compute"
    return None if category in _MOVES else "memory"


def durations(timeline: Timeline) -> I64:
    """Duration of each of the window's GPU events; a negative one counts as 0."""
    gpu = timeline.trace.gpu
    return (gpu.end_ns - gpu.start_ns)[timeline.members].clip(0)


def kernel_summary(timeline: Timeline, top: int, roof: Roofline | None = None) -> Kernels:
    """The window's GPU work, with the `top` kernels by time; `roof`: its FLOPs and bytes, if the GPU is known."""
    trace, links, rows = timeline.trace, timeline.links, timeline.members
    ns = durations(timeline)
    op_name = np.where(links.op[rows] >= 0, trace.ops.name[links.op[rows]] if len(trace.ops) else -1, -1)
    calls = links.call[rows]
    launches = len(distinct(calls[calls >= 0])) + int((calls < 0).sum())
    kernels = trace.gpu.kind[rows] == KERNEL
    return Kernels(
        count=len(rows),
        launches_per_step=launches / len(timeline.steps.start_ns),
        total_ns=int(ns.sum()),
        unattributed_ns=int(ns[links.op[rows] < 0].sum()),
        median_ns=int(np.median(ns[kernels])) if kernels.any() else None,
        by_category=tuple(
            CategoryTime(CATEGORIES[code], time, count, category_bound(CATEGORIES[code], roof))
            for code, time, count in _grouped(timeline.category[rows], ns)
        ),
        by_op=tuple(
            NamedTime(trace.text(name) or "(no op)", time, count)
            for name, time, count in _grouped(op_name, ns, trace)[:top]
        ),
        by_phase=tuple(
            NamedTime(PHASES[code], time, count) for code, time, count in _grouped(timeline.phase[rows], ns)
        ),
        top=_top(timeline, ns, op_name, top, roof),
        after_ns=int((trace.gpu.end_ns[rows] - trace.gpu.start_ns[rows].clip(timeline.window[1])).clip(0).sum()),
    )


def _grouped(keys: np.ndarray, ns: I64, names: Trace | None = None) -> list[tuple[int, int, int]]:
    """(key, ns, count) per distinct key, most time first. Sums are exact integers.

    Keys with equal time are sorted by value, or by their text if `names` says that they are string ids.
    """
    which = numbered(keys)
    values = distinct(keys)
    times = np.zeros(len(values), np.int64)
    np.add.at(times, which, ns)
    found = zip(values.tolist(), times.tolist(), np.bincount(which).tolist(), strict=True)
    if names is None:
        return sorted(found, key=lambda row: (-row[1], row[0]))
    return sorted(found, key=lambda row: (-row[1], names.text(row[0]) or ""))


def _top(timeline: Timeline, ns: I64, op_name: I64, top: int, roof: Roofline | None) -> tuple[KernelTime, ...]:
    """The kernels with most time, each with the op that launches most of it."""
    trace, rows = timeline.trace, timeline.members
    names = trace.gpu.name[rows]
    roofs = {group.key: group for group in roof.by_name} if roof else {}
    result = []
    for name, time, count in _grouped(names, ns, trace)[:top]:
        mine = names == name
        op = _grouped(op_name[mine], ns[mine], trace)[0][0]
        category = CATEGORIES[_grouped(timeline.category[rows][mine], ns[mine])[0][0]]
        moved = trace.gpu.bytes[rows][mine]
        copied = sum(moved.tolist()) if (moved >= 0).all() else None
        group = roofs.get(name)
        result.append(
            KernelTime(
                name=trace.strings[name],
                category=category,
                ns=time,
                count=count,
                op=trace.text(op),
                flops=None if group is None or group.flops is None else round(group.flops),
                bytes=copied if group is None or group.bytes is None else round(group.bytes),
                bound=(group and group.bound) or category_bound(category),
                efficiency=group and group.efficiency,
            )
        )
    return tuple(result)
