"""Kernels of two recordings aligned by name, category, op and module: which are new, gone, more often, or slower."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprof.diagnosis.comparison.comparison import KernelDifference, KernelDifferences, OpDifference
from gpuprof.diagnosis.detect.pair.counts import OpTable
from gpuprof.diagnosis.detect.pair.kernel_table import KernelTable, Key
from gpuprof.units import Assumed, Share

SAME_KERNELS: Assumed[Share] = 0.02
"""Counts and mean durations that differ by less than this share count as equal."""


def compare_kernels(a: KernelTable, b: KernelTable, top: int) -> KernelDifferences:
    """All kernels of both; the `top` with the largest differences are listed by name."""
    a, b = comparable(a, b)
    rows = sorted(_rows(a, b), key=lambda r: (-abs(r.difference_ns), r.name, r.category, r.op or "", r.module or ""))
    shown = [row for row in rows[:top] if row.difference_ns]
    # The same kernel in another module is not another kernel.
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


def exchanged(a: KernelTable, b: KernelTable) -> float:
    """How different the kernels of two recordings are: the share of a side's GPU time in kernels that only it runs, or
    the relative difference of the numbers of kernels, whichever is largest."""
    a, b = comparable(a, b)
    names = [{key[:3] for key in side.count} for side in (a, b)]
    alone = [
        sum(ns for key, ns in side.ns.items() if key[:3] not in other) / max(sum(side.ns.values()), 1)
        for side, other in ((a, names[1]), (b, names[0]))
    ]
    before, after = (sum(side.count.values()) / side.steps for side in (a, b))
    return max(*alone, abs(after - before) / max(before, after, 1))


def comparable(a: KernelTable, b: KernelTable) -> tuple[KernelTable, KernelTable]:
    """Both tables with keys that both know: if one has no ops, by name alone, each name in the category with most of
    its time in the recording that has ops."""
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
    """The difference of one kernel. A different count is priced at the mean duration of both, so the result is
    symmetric in A and B; a kernel that only one of them runs is a difference of count alone."""
    whole = b_ns - a_ns
    if a_count and b_count:
        mean = (a_ns / a_count + b_ns / b_count) / 2
        by_count = round((b_count - a_count) * mean)
        often = abs(b_count - a_count) > SAME_KERNELS * a_count
        slow = abs(b_ns / b_count - a_ns / a_count) > SAME_KERNELS * a_ns / a_count
        change = "both" if often and slow else "count" if often else "duration" if slow else "none"
    else:
        by_count, change = whole, "new" if b_count else "gone"
    name, category, op, module = key
    return KernelDifference(
        name, category, op, module, change, a_ns, b_ns, a_count, b_count, whole, by_count, whole - by_count
    )


def compare_ops(a: OpTable, b: OpTable, top: int) -> tuple[OpDifference, ...]:
    """The CPU ops with the largest differences of self time; none if one side recorded no ops."""
    rows = []
    if not (a.count and b.count):
        return ()
    for name, phase in dict.fromkeys([*a.count, *b.count]):
        key = (name, phase)
        before, after = round(a.ns.get(key, 0)), round(b.ns.get(key, 0))
        rows.append(OpDifference(name, phase, a.count.get(key, 0), b.count.get(key, 0), before, after, after - before))
    rows.sort(key=lambda r: (-abs(r.difference_ns), r.name, r.phase))
    return tuple(row for row in rows[:top] if row.difference_ns or row.a_count != row.b_count)
