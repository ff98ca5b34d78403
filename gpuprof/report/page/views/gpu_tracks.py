"""The tracks of the GPUs: what each waits for, the phases of its work, and its streams."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuprof.diagnosis.idle.gaps import CAUSES, GapColumns
from gpuprof.report import labels
from gpuprof.report.names import shown
from gpuprof.report.numbers import duration, share
from gpuprof.report.page.views.texts import Texts, coded
from gpuprof.report.page.views.timeline_window import DrawnRows
from gpuprof.report.page.views.tracks import Track
from gpuprof.report.page.views.view_colours import BY_CATEGORY, BY_CAUSE, BY_PHASE
from gpuprof.report.palette import CAUSE_PAINTS
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.frames import MODULE
from gpuprof.timeline.intervals import union
from gpuprof.timeline.phases import COMMUNICATION, PHASES
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import ABSENT, I64, KERNEL, Mask, Trace
from gpuprof.units import Convention, Entries, Share, WholeNs

SECOND_CAUSE_SHARE: Convention[Share] = 0.1
"""A second cause is named from this share of a gap on."""
NAMED_WHOLE: Convention[Entries] = 500
"""Number of the longest gaps that show the time of each cause; the others only name their causes."""
SLIVER_NS: Convention[WholeNs] = 20_000
"""Shorter communication (ns) between work of one phase is not drawn in the row of phases: its stream shows it."""

_LABELS = {name: CAUSE_PAINTS[name].label for name in CAUSES}


def gpu_tracks(
    timeline: Timeline, gaps: GapColumns, part: DrawnRows, texts: Texts, device: int, group: int
) -> list[Track]:
    """The tracks of one device."""
    gpu = timeline.trace.gpu
    rows = part.gpu[gpu.device[part.gpu] == device]
    streams = np.unique(gpu.stream[rows])
    return [
        _waits(timeline, gaps, part, texts, device, group),
        _phases(timeline, rows, texts, group),
        *(_stream(timeline, rows[gpu.stream[rows] == stream], texts, int(stream), group) for stream in streams),
    ]


def _waits(timeline: Timeline, gaps: GapColumns, part: DrawnRows, texts: Texts, device: int, group: int) -> Track:
    """The device's gaps in the window, each in the colour of its main cause."""
    mine = np.flatnonzero((gaps.device == device) & (gaps.start_ns >= part.low_ns) & (gaps.start_ns < part.high_ns))
    names = np.array([texts.add(_LABELS[name]) for name in CAUSES])
    return Track(
        group=group,
        name="waits for",
        kind="waits",
        start_ns=gaps.start_ns[mine],
        end_ns=gaps.end_ns[mine],
        text=names[gaps.cause[mine]],
        paint=BY_CAUSE[gaps.cause[mine]],
        detail=_wait_details(timeline, gaps, mine, texts),
        link_table="gpu",
        link=gaps.awaited[mine],
    )


def _wait_details(timeline: Timeline, gaps: GapColumns, rows: I64, texts: Texts) -> I64:
    ops, ns = timeline.trace.ops, gaps.ns[rows]
    op = np.where(gaps.op[rows] >= 0, ops.name[gaps.op[rows]] if len(ops) else -1, -1)
    also = gaps.by_cause[rows] >= SECOND_CAUSE_SHARE * np.maximum(ns, 1)[:, None]
    mixed = also.astype(np.int64) @ (1 << np.arange(len(CAUSES), dtype=np.int64))
    first, code = coded(op, gaps.module[rows], gaps.phase[rows], gaps.cause[rows], mixed)
    details = []
    for i in first.tolist():
        main = gaps.cause[rows[i]]
        others = [_LABELS[name] for k, name in enumerate(CAUSES) if k != main and also[i, k]]
        words = [_awaited(timeline, gaps, int(rows[i])), f"also {', '.join(others)}" if others else ""]
        details.append(texts.add(" · ".join(filter(None, words))))
    found = np.array(details, np.int64)[code] if len(rows) else np.empty(0, np.int64)
    for i in np.argsort(-ns, kind="stable")[:NAMED_WHOLE].tolist():
        found[i] = texts.add(_whole_story(timeline, gaps, int(rows[i])))
    return found


def _whole_story(timeline: Timeline, gaps: GapColumns, row: int) -> str:
    total = int(gaps.ns[row])
    parts = sorted(zip(gaps.by_cause[row].tolist(), CAUSES, strict=True), reverse=True)
    causes = ", ".join(f"{_LABELS[name]} {duration(ns)} ({share(ns, total)})" for ns, name in parts if ns)
    frame = timeline.trace.text(int(gaps.frame[row]))
    return " · ".join(filter(None, [_awaited(timeline, gaps, row), causes, shown(frame, 200) if frame else ""]))


def _awaited(timeline: Timeline, gaps: GapColumns, row: int) -> str:
    """`before aten::mul ← Linear, backward`."""
    trace = timeline.trace
    op, module = int(gaps.op[row]), trace.text(int(gaps.module[row]))
    if gaps.awaited[row] < 0:
        return "until the recording ends"
    what = shown(trace.strings[trace.ops.name[op]], 120) if op >= 0 else "work"
    inside = f" ← {shown(module.removeprefix(MODULE), 80)}" if module else ""
    return f"before {what}{inside}, {PHASES[gaps.phase[row]]}"


def _phases(timeline: Timeline, rows: I64, texts: Texts, group: int) -> Track:
    """The phase that the GPU works on, in one row."""
    start, end, phase = gpu_phase_spans(timeline, rows)
    names = np.array([texts.add(name) for name in PHASES])
    return Track(
        group, "phases", "phases", start, end, names[phase], BY_PHASE[phase], np.full(len(start), -1)
    )  # fmt: skip


def gpu_phase_spans(timeline: Timeline, rows: I64) -> tuple[I64, I64, I64]:
    """(starts, ends, phases) of the work of some rows of the GPU, ns, without overlaps.

    Where work of several phases runs, the one that began last counts; communication only where nothing else runs. Gaps
    and slivers of communication between work of one phase belong to that phase.
    """
    gpu, phase = timeline.trace.gpu, timeline.phase[rows].astype(np.int64)
    start, end = gpu.start_ns[rows], np.maximum(gpu.end_ns[rows], gpu.start_ns[rows])
    cuts, last = np.unique(np.concatenate([start, end])), len(PHASES)
    if len(cuts) < 2:
        return start[:0], end[:0], phase[:0]
    begun = np.full((last, len(cuts) - 1), -1, np.int64)
    for one in np.unique(phase).tolist():
        spans = union(start[phase == one], end[phase == one])
        if len(spans):
            at = np.searchsorted(spans.start, cuts[:-1], side="right") - 1
            inside = (at >= 0) & (spans.end[at] > cuts[:-1])
            begun[one, inside] = 0 if one == COMMUNICATION else spans.start[at[inside]] - cuts[0] + 1
    found = np.where((begun >= 0).any(axis=0), begun.argmax(axis=0), -1)
    found = _filled(found, cuts, lambda code, _: code < 0)
    found = _filled(found, cuts, lambda code, ns: (code == COMMUNICATION) & (ns < SLIVER_NS))
    first = np.flatnonzero(np.diff(found, prepend=-2))
    until = np.append(cuts[first[1:]], cuts[-1])
    known = found[first] >= 0
    return cuts[first[known]], until[known], found[first[known]]


def _filled(found: I64, cuts: I64, passes: Callable[[I64, I64], Mask]) -> I64:
    """Codes of consecutive stretches between cuts, where runs that `passes` selects (by code and length) take the code
    of both sides."""
    first = np.flatnonzero(np.diff(found, prepend=-2))
    code, until = found[first], np.append(cuts[first[1:]], cuts[-1])
    before, after = np.append(-2, code[:-1]), np.append(code[1:], -3)
    code = np.where(passes(code, until - cuts[first]) & (before == after), before, code)
    return np.repeat(code, np.diff(np.append(first, len(found))))


def _stream(timeline: Timeline, rows: I64, texts: Texts, stream: int, group: int) -> Track:
    gpu, links = timeline.trace.gpu, timeline.links
    name = "stream –" if stream == ABSENT else f"stream {stream}"
    return Track(
        group=group,
        name=name,
        kind="stream",
        start_ns=gpu.start_ns[rows],
        end_ns=gpu.end_ns[rows],
        text=texts.kernels(gpu.name[rows]),
        paint=BY_CATEGORY[timeline.category[rows]],
        detail=_work_details(timeline, rows, texts),
        table="gpu",
        row=rows,
        link_table="calls",
        link=links.call[rows],
    )


def _work_details(timeline: Timeline, rows: I64, texts: Texts) -> I64:
    gpu = timeline.trace.gpu
    occupancy = np.nan_to_num(gpu.occupancy[rows], nan=-1).astype(np.int64)
    columns = (
        timeline.category[rows], timeline.phase[rows], gpu.kind[rows], gpu.grid_x[rows], gpu.grid_y[rows],
        gpu.grid_z[rows], gpu.block_x[rows], gpu.block_y[rows], gpu.block_z[rows], gpu.registers[rows],
        gpu.shared_bytes[rows], occupancy, gpu.bytes[rows],
    )  # fmt: skip
    if not len(rows):
        return np.empty(0, np.int64)
    first, code = coded(*columns)
    made = [texts.add(_work_detail(timeline, int(rows[i]), int(occupancy[i]))) for i in first.tolist()]
    return np.array(made, np.int64)[code]


def _work_detail(timeline: Timeline, row: int, occupancy: int) -> str:
    """`attention · forward · grid 128×1×1 · block 256×1×1 · 32 registers · 48 KiB shared · occupancy 50 %`."""
    trace = timeline.trace
    words = [labels.category(CATEGORIES[timeline.category[row]]), PHASES[timeline.phase[row]]]
    if trace.gpu.kind[row] == KERNEL:
        words += _launch(trace, row, occupancy)
    elif (moved := int(trace.gpu.bytes[row])) >= 0:
        words.append(_bytes(moved))
    return " · ".join(words)


def _launch(trace: Trace, row: int, occupancy: int) -> list[str]:
    gpu, words = trace.gpu, []
    grid, block = (gpu.grid_x, gpu.grid_y, gpu.grid_z), (gpu.block_x, gpu.block_y, gpu.block_z)
    for what, sizes in (("grid", grid), ("block", block)):
        numbers = [int(size[row]) for size in sizes]
        if min(numbers) >= 0:
            words.append(f"{what} {'×'.join(map(str, numbers))}")
    if gpu.registers[row] >= 0:
        words.append(f"{int(gpu.registers[row])} registers")
    if gpu.shared_bytes[row] > 0:
        words.append(f"{_bytes(int(gpu.shared_bytes[row]))} shared")
    return [*words, f"occupancy {occupancy} %"] if occupancy >= 0 else words


def _bytes(n: int) -> str:
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if n >= size:
            return f"{n / size:,.1f} {unit}"
    return f"{n:,} B"
