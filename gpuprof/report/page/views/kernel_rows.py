"""The kernel table: GPU work by name, op, module and phase."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuprof.costs.split import PARTS
from gpuprof.diagnosis.result.tables import Tables
from gpuprof.report import labels
from gpuprof.report.charts.groups import BEYOND_CEILING
from gpuprof.report.names import shown
from gpuprof.report.page.views.texts import Texts, coded
from gpuprof.report.page.views.view_colours import BY_CATEGORY
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.frames import FrameIndex, module_class
from gpuprof.timeline.phases import PHASES
from gpuprof.tracefile.trace import I32, I64
from gpuprof.units import Convention, Rows

MOST_ROWS: Convention[Rows] = 3_000
"""Rows of the table, which readers filter; the rest is summed up in one row per category."""


def kernel_rows(tables: Tables, texts: Texts) -> dict[str, Any] | None:
    """The table as columns, most time first; None where no GPU work was recorded."""
    timeline, roof = tables.timeline, tables.roofline
    rows = timeline.members
    if not len(rows):
        return None
    trace, links = timeline.trace, timeline.links
    category, phase = timeline.category[rows].astype(np.int64), timeline.phase[rows].astype(np.int64)
    op = np.where(links.op[rows] >= 0, trace.ops.name[links.op[rows]] if len(trace.ops) else -1, -1)
    module = _module_classes(tables, rows, texts)
    name = texts.kernels(trace.gpu.name[rows])
    ns = (trace.gpu.end_ns - trace.gpu.start_ns)[rows].clip(0)
    op_text = texts.names(op)
    first, code = coded(category, phase, op_text, module, name)
    first, code = _fewer(first, code, ns, category)
    total = _summed(code, ns)
    order = np.argsort(-total, kind="stable")
    columns: dict[str, Any] = {
        "name": name[first],
        "category": np.array([texts.add(labels.category(c)) for c in CATEGORIES])[category[first]],
        "op": op_text[first],
        "module": module[first],
        "phase": np.array([texts.add(p) for p in PHASES])[phase[first]],
        "paint": BY_CATEGORY[category[first]],
        "count": np.bincount(code),
        "ns": total,
        "median_ns": _medians(code, ns),
        "max_ns": _longest(code, ns),
    }
    found = {key: values[order].tolist() for key, values in columns.items()}
    nothing: list[None] = [None] * len(first)
    if roof is None:
        return {**found, "bound": nothing, "efficiency": nothing, "flops": nothing, "bytes": nothing}
    known = roof.work.model[rows]
    any_known = _summed(code, known.astype(np.int64)) > 0
    in_parts = np.array([_summed(code, np.where(roof.split.bound[rows] == k, ns, 0)) for k in range(3)])
    at_roof = _summed(code, (roof.split.compute_ns + roof.split.memory_ns)[rows].astype(np.int64))
    modelled_ns = _summed(code, np.where(roof.split.bound[rows] < len(PARTS), ns, 0))
    flops = _summed(code, np.where(known, roof.work.flops[rows], 0.0))
    moved = _summed(code, np.where(known, roof.work.bytes[rows], 0.0))

    # More FLOPs than the fastest format reaches are the work of another kernel of the op.
    most = BEYOND_CEILING * max(roof.ceilings.flops.values(), default=np.inf) * np.maximum(total, 1) / 1e9

    def given(values: np.ndarray, where: np.ndarray, digits: int = 4) -> list[float | None]:
        pairs = zip(values[order].tolist(), where[order].tolist(), strict=True)
        return [float(f"{v:.{digits}g}") if ok and np.isfinite(v) else None for v, ok in pairs]

    bound = [PARTS[k] if ns else None for k, ns in zip(in_parts.argmax(axis=0), in_parts.max(axis=0), strict=True)]
    return {
        **found,
        "bound": [bound[i] for i in order.tolist()],
        "efficiency": given(at_roof / np.maximum(modelled_ns, 1), modelled_ns > 0),
        # No FLOPs are known for kernels that multiply no matrices, or where another kernel of the same op has them.
        "flops": given(flops, any_known & (flops > 0) & (flops <= most)),
        "bytes": given(moved, any_known),
    }


def _module_classes(tables: Tables, rows: I64, texts: Texts) -> I64:
    """Text of the class of the innermost module of each GPU event."""
    timeline = tables.timeline
    trace, links = timeline.trace, timeline.links
    frames = FrameIndex(trace, timeline.nesting)
    ids: I32 = frames.module(links.thread[rows], links.begun_ns[rows], links.scope[rows])
    distinct, inverse = np.unique(ids, return_inverse=True)
    names = [texts.add("–" if i < 0 else shown(module_class(trace.strings[i]), 80)) for i in distinct.tolist()]
    return np.array(names, np.int64)[inverse]


def _fewer(first: I64, code: I64, ns: I64, category: I64) -> tuple[I64, I64]:
    """Keeps the groups with most time; the rest become one group per category, named after its largest."""
    if len(first) <= MOST_ROWS:
        return first, code
    total = _summed(code, ns)
    order = np.argsort(-total, kind="stable")
    rank = np.empty(len(first), np.int64)
    rank[order] = np.arange(len(first))
    group = np.where(rank < MOST_ROWS, rank, MOST_ROWS + category[first])
    distinct, position = np.unique(group, return_inverse=True)
    lead = np.full(len(distinct), -1, np.int64)
    lead[position[order[::-1]]] = first[order[::-1]]
    return lead, position[code]


def _summed(code: I64, values: np.ndarray) -> np.ndarray:
    total = np.zeros(int(code.max(initial=-1)) + 1, values.dtype)
    np.add.at(total, code, values)
    return total


def _longest(code: I64, ns: I64) -> I64:
    longest = np.zeros(int(code.max(initial=-1)) + 1, np.int64)
    np.maximum.at(longest, code, ns)
    return longest


def _medians(code: I64, ns: I64) -> I64:
    """The lower middle value of each group."""
    order = np.lexsort((ns, code))
    counts = np.bincount(code)
    start = np.cumsum(counts) - counts
    return ns[order][start + (counts - 1) // 2]
