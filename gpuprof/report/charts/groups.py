"""Kernels in groups that a chart shows as points: those of one name, op and number format."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpuprof.costs.ceilings import Ceilings
from gpuprof.costs.dtypes import DTYPES
from gpuprof.costs.roofline import Roofline
from gpuprof.costs.split import LATENCY, NO_BOUND, PARTS
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.charts.recorded_columns import tables_of
from gpuprof.report.charts.style import plain, text
from gpuprof.report.names import shown_kernel
from gpuprof.report.numbers import count, duration, share
from gpuprof.report.palette import category_group
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.timeline import Timeline
from gpuprof.timeline.unit import Unit
from gpuprof.tracefile.trace import I64
from gpuprof.units import Assumed, Convention, FloatPx, Ratio, Rows, Share

_MOST_GROUPS: Convention[Rows] = 100
_SHOWN_SHARE: Convention[Share] = 0.99
"""Groups are shown, most time first, until they make up this share of the time."""
_WIDEST_PX: Convention[FloatPx] = 38.0
_SMALLEST_PX: Convention[FloatPx] = 5.0
"""Largest diameter in pixels, for the group with the most time, and smallest one."""


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """Kernels of one name, launched by one op, that compute in one format; all sums are over the window."""

    name: str
    op: str | None
    group: str
    """Key into CATEGORY_PAINTS."""
    dtype: str | None
    ns: int
    count: int
    flops: float
    bytes: float
    bound: str | None
    """compute | memory | latency: what limits most of its time."""
    efficiency: float
    """Time at the roof over time taken."""

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.ns * 1e9

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.ns * 1e9


MOSTLY_UNKNOWN: Convention[Share] = 0.9
"""If more than this share of the GPU's time is in kernels of unknown work, a chart of the rest would mislead."""


def known_roofline(diagnosis: Diagnosis) -> tuple[Timeline, Roofline] | None:
    """The timeline and its roofline; None where the GPU's ceilings or nearly all kernels' work are not known."""
    tables = tables_of(diagnosis)
    if tables is None or tables.roofline is None or tables.roofline.unmodelled_share > MOSTLY_UNKNOWN:
        return None
    return tables.timeline, tables.roofline


def kernel_groups(timeline: Timeline, roof: Roofline, rows: I64) -> list[KernelGroup]:
    """Groups of the given GPU events, whose work must be known; most time first. Groups without time are left out."""
    trace = timeline.trace
    gpu, ops, work = trace.gpu, trace.ops, roof.work
    op = timeline.links.op[rows]
    op_name = np.where(op >= 0, ops.name[op] if len(ops) else -1, -1).astype(np.int64)
    # The three keys packed into one number: sorting rows would take many times as long.
    keys = (gpu.name[rows].astype(np.int64) * (len(trace.strings) + 1) + op_name + 1) * 256 + work.dtype[rows]
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    size = len(first)
    ns = (gpu.end_ns - gpu.start_ns)[rows].clip(0)

    def summed(values: np.ndarray) -> np.ndarray:
        return np.bincount(inverse, weights=values, minlength=size)

    total, flops, moved = summed(ns), summed(work.flops[rows]), summed(work.bytes[rows])
    at_roof = summed((roof.split.compute_ns + roof.split.memory_ns)[rows])
    bound = roof.split.bound[rows]
    bounds = np.stack([summed(np.where(bound == code, ns, 0)) for code in range(LATENCY + 1)])
    counts = np.bincount(inverse, minlength=size)
    found = []
    for i in np.argsort(-total, kind="stable").tolist():
        if total[i] <= 0:
            break
        row, code = int(rows[first[i]]), int(work.dtype[rows[first[i]]])
        found.append(
            KernelGroup(
                name=trace.strings[gpu.name[row]],
                op=trace.text(int(op_name[first[i]])),
                group=category_group(CATEGORIES[timeline.category[row]]),
                dtype=DTYPES[code] if code < len(DTYPES) else None,
                ns=int(total[i]),
                count=int(counts[i]),
                flops=float(flops[i]),
                bytes=float(moved[i]),
                bound=PARTS[int(bounds[:, i].argmax())] if bounds[:, i].any() else None,
                efficiency=float(at_roof[i] / total[i]),
            )
        )
    return found


BEYOND_CEILING: Assumed[Ratio] = 1.1
"""A rate above this many times the ceiling cannot be the kernel's own: measured ceilings are a few percent off."""


def possible(groups: list[KernelGroup], ceilings: Ceilings) -> tuple[list[KernelGroup], str]:
    """(those that compute no faster than their ceiling, a note on the others).

    The op's whole work is booked on one of its kernels; if that is only a helper, the rate is impossibly high.
    """
    top = max(ceilings.flops.values(), default=math.inf)
    kept = [g for g in groups if g.flops_per_s <= BEYOND_CEILING * ceilings.flops.get(g.dtype or "", top)]
    n = len(groups) - len(kept)
    which = "kernel" if n == 1 else "kernels"
    return kept, f" {n} {which} left out: the work of the op is not that of the kernel." if n else ""


def modelled_rows(timeline: Timeline, roof: Roofline) -> I64:
    """Rows of the window's GPU events whose work on the GPU itself is known."""
    rows = timeline.members
    work = roof.work
    return rows[work.model[rows] & (roof.split.bound[rows] != NO_BOUND) & ~work.over_link[rows]]


def largest(groups: list[KernelGroup]) -> list[KernelGroup]:
    """The largest groups, which make up nearly all of the time."""
    total = sum(group.ns for group in groups)
    reached = np.cumsum([group.ns for group in groups])
    enough = int(np.searchsorted(reached, _SHOWN_SHARE * total)) + 1
    return groups[: min(enough, _MOST_GROUPS)]


def left_out(shown_groups: list[KernelGroup], groups: list[KernelGroup]) -> str:
    """` 12 smaller ones, 1 % of it, left out.`"""
    rest = len(groups) - len(shown_groups)
    if not rest:
        return ""
    total = sum(group.ns for group in groups)
    missing = total - sum(group.ns for group in shown_groups)
    return f" {rest} smaller {'one' if rest == 1 else 'ones'}, {share(missing, total)} of it, left out."


def diameters(groups: list[KernelGroup]) -> list[float]:
    """Areas in proportion to time; the smallest are drawn larger, so that they can be seen."""
    most = max((group.ns for group in groups), default=1)
    return [max(_WIDEST_PX * (group.ns / most) ** 0.5, _SMALLEST_PX) for group in groups]


def hover(group: KernelGroup, steps: int, unit: Unit) -> list[str]:
    """Lines for the label of a point: kernel, op, time, what limits it."""
    limit = f"{group.bound}-bound, " if group.bound else ""
    return [
        plain(shown_kernel(group.name, 70)),
        text(group.op, 60) if group.op else "op not known",
        f"{duration(group.ns / steps)} and {count(group.count / steps)} × {unit.a}, "
        f"{duration(group.ns / group.count)} each",
        f"{limit}{100 * group.efficiency:.0f} % of what the GPU reaches",
    ]
